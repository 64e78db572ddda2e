"""Which rank publishes which block of a model that is spread over ranks, and which part of a block is on which rank.

It follows from the layout and the number of ranks, so all ranks come to the same without a word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.trainer.network.spread import rows_of
from trimtab.weights.layout import Block, StateLayout


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of one tensor in one block, held by one rank."""

    block: int
    at: int
    """Where it begins in the block, in bytes."""
    tensor: str
    holder: int
    first: int
    last: int
    """Elements, of those that the holder has."""
    size: int
    """In bytes."""


@dataclass(frozen=True)
class BlockShares:
    """`owners` are those of the blocks, in their order; `segments` are the blocks' parts."""

    owners: tuple[int, ...]
    segments: tuple[tuple[Segment, ...], ...]

    @classmethod
    def of(cls, layout: StateLayout, *, ranks: int, spread: frozenset[str]) -> BlockShares:
        """`spread` names the tensors of which each rank has some rows; the others are whole on all of them, and taken
        from the block's owner.
        """
        parts = [list(_parts(layout, block, ranks=ranks, spread=spread)) for block in layout.blocks]
        owners = _owners(layout.blocks, parts, ranks=ranks)
        segments = tuple(
            tuple(part if part.tensor in spread else _held_by(part, owner) for part in its)
            for its, owner in zip(parts, owners, strict=True)
        )
        return cls(owners, segments)

    def owned_by(self, rank: int, layout: StateLayout) -> tuple[Block, ...]:
        return tuple(block for block, owner in zip(layout.blocks, self.owners, strict=True) if owner == rank)

    def held_by(self, rank: int) -> tuple[Segment, ...]:
        return tuple(segment for its in self.segments for segment in its if segment.holder == rank)


def _parts(layout: StateLayout, block: Block, *, ranks: int, spread: frozenset[str]) -> Iterator[Segment]:
    width = block.element.width
    for tensor in layout.tensors_in(block):
        start, end = max(tensor.start, block.start), min(tensor.end, block.end)
        first, last = (start - tensor.start) // width, (end - tensor.start) // width
        holders = range(ranks) if tensor.name in spread else range(1)
        row = math.prod(tensor.shape[1:])
        for holder in holders:
            held = range(math.prod(tensor.shape))
            if tensor.name in spread:
                rows = rows_of(tensor.shape[0], rank=holder, ranks=ranks)
                held = range(rows.start * row, rows.stop * row)
            low, high = max(first, held.start), min(last, held.stop)
            if low < high:
                yield Segment(
                    block=block.index,
                    at=start - block.start + (low - first) * width,
                    tensor=tensor.name,
                    holder=holder,
                    first=low - held.start,
                    last=high - held.start,
                    size=(high - low) * width,
                )


def _owners(blocks: Sequence[Block], parts: Sequence[Sequence[Segment]], *, ranks: int) -> tuple[int, ...]:
    """The rank that holds most of a block, as long as it has not had its share; of several, the one that has least."""
    share = -(-sum(block.size for block in blocks) // ranks)
    loads = [0] * ranks
    owners = []
    for block, its in zip(blocks, parts, strict=True):
        held = [0] * ranks
        for part in its:
            held[part.holder] += part.size
        free = [rank for rank in range(ranks) if loads[rank] + block.size <= share]
        if free:
            owner = max(free, key=lambda rank: (held[rank], -loads[rank], -rank))
        else:
            owner = min(range(ranks), key=lambda rank: (loads[rank], -held[rank], rank))
        loads[owner] += block.size
        owners.append(owner)
    return tuple(owners)


def _held_by(part: Segment, owner: int) -> Segment:
    return Segment(
        block=part.block, at=part.at, tensor=part.tensor, holder=owner, first=part.first, last=part.last, size=part.size
    )
