"""What the ranks of one trainer tell each other. Alone, a rank agrees with itself."""

from __future__ import annotations

import torch
import torch.distributed as dist


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def sums(*values: float) -> tuple[float, ...]:
    """Each value added up over all ranks, in float64."""
    return _reduced(values, dist.ReduceOp.SUM)


def maxima(*values: float) -> tuple[float, ...]:
    return _reduced(values, dist.ReduceOp.MAX)


def wait_for_all() -> None:
    """Until every rank has come here."""
    maxima(0.0)


def gathered(values: torch.Tensor) -> torch.Tensor:
    """The elements of all ranks, one rank's after the other's. They may have different numbers of them."""
    if world_size() == 1:
        return values
    counts = torch.zeros(world_size(), dtype=torch.int64, device=values.device)
    counts[dist.get_rank()] = len(values)
    dist.all_reduce(counts)
    padded = values.new_zeros(int(counts.max()))
    padded[: len(values)] = values
    everyone = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(everyone, padded)
    return torch.cat([part[:count] for part, count in zip(everyone, counts.tolist(), strict=True)])


def _reduced(values: tuple[float, ...], operation: dist.ReduceOp.RedOpType) -> tuple[float, ...]:
    if world_size() == 1:
        return values
    # Gloo takes what lies in main memory, whatever the model lies in.
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=operation)
    return tuple(tensor.tolist())
