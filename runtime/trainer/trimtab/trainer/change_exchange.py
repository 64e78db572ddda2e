"""Brings what each rank has found changed in the weights that it holds to the ranks that publish the blocks. It happens
beside the step that the ranks' main threads are in the midst of, and only changes travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from trimtab.trainer import ranks
from trimtab.trainer.block_shares import BlockShares
from trimtab.weights.baseline import WeightChanges
from trimtab.weights.codec.change import Sparse, elements
from trimtab.weights.layout import StateLayout

_TIMEOUT = timedelta(minutes=10)


class _Found(msgspec.Struct, frozen=True, array_like=True):
    """A part of a block's changes, as one rank tells another."""

    block: int
    positions: bytes
    values: bytes


class ChangeExchange:
    """All ranks make it together, and come to it equally often. It has a process group of its own, so that it never
    gets between a step's sums.
    """

    def __init__(self, layout: StateLayout, shares: BlockShares) -> None:
        self._layout = layout
        self._shares = shares
        group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        self._group = group

    def brought(self, found: Mapping[int, Sparse]) -> dict[int, Sparse]:
        """The changes of the blocks that this rank owns, whoever found them. A rank that dies is an error on all."""
        sent: list[list[_Found]] = [[] for _ in range(ranks.world_size())]
        for block, change in found.items():
            part = _Found(block, change.positions.tobytes(), change.values.tobytes())
            sent[self._shares.owners[block]].append(part)
        parts: dict[int, list[Sparse]] = {}
        for word in self._exchanged([msgspec.msgpack.encode(its) for its in sent]):
            for told in msgspec.msgpack.decode(word, type=list[_Found]):
                width = self._layout.blocks[told.block].element.width
                values = elements(np.frombuffer(told.values, dtype=np.uint8), width)
                change = Sparse(np.frombuffer(told.positions, dtype=np.uint32), values)
                parts.setdefault(told.block, []).append(change)
        return {block: in_order(its) for block, its in sorted(parts.items())}

    def _exchanged(self, words: Sequence[bytes]) -> list[bytes]:
        """A word for each rank, for one from each rank."""
        sizes = torch.tensor([len(word) for word in words])
        awaited = torch.empty_like(sizes)
        dist.all_to_all_single(awaited, sizes, group=self._group)
        received = torch.empty(int(awaited.sum()), dtype=torch.uint8)
        sent = torch.frombuffer(bytearray(b"".join(words)), dtype=torch.uint8)
        dist.all_to_all_single(received, sent, awaited.tolist(), sizes.tolist(), group=self._group)
        ends = awaited.cumsum(0).tolist()
        return [received[end - size : end].numpy().tobytes() for end, size in zip(ends, awaited.tolist(), strict=True)]


class ExchangedChanges:
    """What all ranks have found of the blocks that this one owns."""

    def __init__(self, found: WeightChanges, exchange: ChangeExchange) -> None:
        self.layout = found.layout
        self._found = found
        self._exchange = exchange

    def by_block(self) -> dict[int, Sparse]:
        """Waits for the GPU and for the other ranks. Once, by each of them."""
        return self._exchange.brought(self._found.by_block())


def in_order(parts: Sequence[Sparse]) -> Sparse:
    """Changes of different places in a block as one."""
    if len(parts) == 1:
        return parts[0]
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")
    return Sparse(positions[order], np.concatenate([part.values for part in parts])[order])
