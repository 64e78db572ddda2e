"""Each block has one owner, no rank owns much more than its share, and the parts of a block make it up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trimtab.trainer.block_shares import BlockShares
from trimtab.trainer.network.spread import rows_of
from trimtab.weights.layout import BLOCK_BYTES, StateLayout

SHAPES: dict[str, tuple[int, ...]] = {
    "embed": (30_000, 256),
    "head": (30_001, 256),
    **{f"layers.{layer}.up": (2500, 1024) for layer in range(6)},
    **{f"layers.{layer}.norm": (512,) for layer in range(6)},
    "few": (3, 5),
    "none": (0, 4),
}
BUFFER = "counts"
LAYOUT = StateLayout.of({name: ("BF16", shape) for name, shape in SHAPES.items()} | {BUFFER: ("I32", (7,))})
SPREAD = frozenset(SHAPES)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_rows_are_spread_as_torch_spreads_them(ranks: int) -> None:
    for rows in (0, 1, 3, 8, 30_001):
        chunks = torch.arange(rows).chunk(ranks) if rows else ()
        for rank in range(ranks):
            expected = chunks[rank].tolist() if rank < len(chunks) else []
            assert list(rows_of(rows, rank=rank, ranks=ranks)) == expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_no_rank_owns_much_more_than_its_share(ranks: int) -> None:
    shares = BlockShares.of(LAYOUT, ranks=ranks, spread=SPREAD)
    assert len(LAYOUT.blocks) > 4
    loads = [sum(block.size for block in shares.owned_by(rank, LAYOUT)) for rank in range(ranks)]
    assert sum(loads) == LAYOUT.data_bytes
    assert max(loads) <= LAYOUT.data_bytes / ranks + BLOCK_BYTES


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_the_parts_that_ranks_hold_make_up_every_block(ranks: int) -> None:
    shares = BlockShares.of(LAYOUT, ranks=ranks, spread=SPREAD)
    numbers = {name: np.arange(math.prod(shape), dtype=np.uint16) for name, shape in SHAPES.items()}
    counts = np.arange(7, dtype=np.uint32)
    data = np.zeros(LAYOUT.data_bytes, dtype=np.uint8)
    for tensor in LAYOUT.tensors:
        data[tensor.start : tensor.end] = numbers.get(tensor.name, counts).view(np.uint8)
    for block, segments in zip(LAYOUT.blocks, shares.segments, strict=True):
        content = np.zeros(block.size, dtype=np.uint8)
        for segment in segments:
            if segment.tensor == BUFFER:
                assert segment.holder == shares.owners[block.index]
                held = counts.view(np.uint8)
            else:
                shape = SHAPES[segment.tensor]
                rows = rows_of(shape[0], rank=segment.holder, ranks=ranks)
                held = numbers[segment.tensor].reshape(shape)[rows.start : rows.stop].reshape(-1).view(np.uint8)
            width = block.element.width
            content[segment.at : segment.at + segment.size] = held[segment.first * width : segment.last * width]
        assert np.array_equal(content, data[block.start : block.end])


def test_blocks_stay_where_they_are_when_each_rank_holds_whole_ones() -> None:
    layout = StateLayout.of({"a": ("BF16", (4096, 4096))})
    shares = BlockShares.of(layout, ranks=2, spread=frozenset({"a"}))
    for owner, segments in zip(shares.owners, shares.segments, strict=True):
        assert {segment.holder for segment in segments} == {owner}
