"""The weights of a model that is spread over ranks, as publishers read them: each rank has the blocks that it owns, in
the published type and in main memory. What of them other ranks hold is sent to it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
import torch
import torch.distributed as dist

from trimtab.trainer import ranks
from trimtab.trainer.block_shares import BlockShares, Segment
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout

_ROUND_BYTES = 256 << 20
"""Of all ranks' blocks together, as many are put together at once: what is sent and received is held twice."""


class SpreadWeights:
    """All ranks make it together, and copy together."""

    def __init__(
        self,
        layout: StateLayout,
        dtypes: Mapping[str, torch.dtype],
        *,
        spread: frozenset[str],
        round_bytes: int = _ROUND_BYTES,
    ) -> None:
        self.layout = layout
        self._dtypes = dtypes
        self.shares = BlockShares.of(layout, ranks=ranks.world_size(), spread=spread)
        self.own = self.shares.owned_by(ranks.rank(), layout)
        self._content = {block.index: np.empty(block.size, dtype=np.uint8) for block in self.own}
        self._rounds = [
            [segment for block in blocks for segment in self.shares.segments[block.index]]
            for blocks in _rounds(layout, round_bytes=round_bytes)
        ]

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self._content[block.index])

    @torch.no_grad()
    def copy(self, held: Mapping[str, torch.Tensor]) -> None:
        """Take the weights as they are now; `held` is what this rank has of each tensor."""
        for segments in self._rounds:
            self._exchange(segments, held)

    def _exchange(self, segments: list[Segment], held: Mapping[str, torch.Tensor]) -> None:
        me = ranks.rank()
        sent: list[list[torch.Tensor]] = [[] for _ in range(ranks.world_size())]
        awaited: list[list[Segment]] = [[] for _ in range(ranks.world_size())]
        for segment in segments:
            owner = self.shares.owners[segment.block]
            if segment.holder == owner == me:
                self._place(segment, self._published(segment, held).numpy())
            elif segment.holder == me:
                sent[owner].append(self._published(segment, held))
            elif owner == me:
                awaited[segment.holder].append(segment)
        empty = torch.empty(0, dtype=torch.uint8)
        received = torch.empty(sum(segment.size for its in awaited for segment in its), dtype=torch.uint8)
        dist.all_to_all_single(
            received,
            torch.cat([empty, *(part for parts in sent for part in parts)]),
            [sum(segment.size for segment in its) for its in awaited],
            [sum(len(part) for part in parts) for parts in sent],
        )
        at = 0
        for segment in (segment for its in awaited for segment in its):
            self._place(segment, received[at : at + segment.size].numpy())
            at += segment.size

    def _published(self, segment: Segment, held: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Its bytes, in main memory."""
        values = held[segment.tensor].reshape(-1)[segment.first : segment.last].to(self._dtypes[segment.tensor])
        return values.contiguous().cpu().view(torch.uint8)

    def _place(self, segment: Segment, content: Bytes) -> None:
        np.copyto(self._content[segment.block][segment.at : segment.at + segment.size], content)


def _rounds(layout: StateLayout, *, round_bytes: int) -> Iterator[list[Block]]:
    """Blocks one after the other, so many bytes at a time."""
    for _, blocks in groupby(layout.blocks, key=lambda block: block.start // round_bytes):
        yield list(blocks)
