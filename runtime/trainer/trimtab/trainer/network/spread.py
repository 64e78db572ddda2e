"""How a tensor is spread over the ranks: by rows, of which each rank holds as many as torch.chunk gives it."""

from __future__ import annotations


def rows_of(rows: int, *, rank: int, ranks: int) -> range:
    """The rows that a rank holds, of a tensor with so many; with few rows the last ranks hold none."""
    each = -(-rows // ranks)
    return range(min(rank * each, rows), min((rank + 1) * each, rows))
