"""How a tensor is spread over the ranks: by rows, of which each rank holds as many as torch.chunk gives it."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def rows_of(rows: int, *, rank: int, ranks: int) -> range:
    """The rows that a rank holds, of a tensor with so many; with few rows the last ranks hold none."""
    each = -(-rows // ranks)
    return range(min(rank * each, rows), min((rank + 1) * each, rows))


def held_rows(tensor: torch.Tensor) -> range:
    """Those of a tensor that this rank holds; all of them where it is not spread."""
    if not isinstance(tensor, DTensor):
        return range(tensor.shape[0])
    mesh = tensor.device_mesh
    return rows_of(tensor.shape[0], rank=mesh.get_local_rank(), ranks=mesh.size())


def held_here(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor; all of it where it is not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor put together from all ranks, which call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
