"""Keeps what was published last beside the model on its GPU, so that an update is compared there and only what changed
leaves it. The optimiser need not wait: the comparison stands before it in the same stream. Of several ranks each
compares what it holds, and what it finds goes to the ranks that publish it (change_exchange.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.trainer.block_shares import BlockShares, Segment
from trimtab.trainer.change_exchange import in_order
from trimtab.trainer.changed_kernel import ALIGNED, CHUNK, Room, comparable, launch
from trimtab.weights.codec.change import Elements, Positions, Sparse
from trimtab.weights.layout import StateLayout

_ROOM_SHARE = 32
"""One weight in so many may have changed; more take another pass."""
_LEAST_ROOM = 1 << 20
_ALIGNED = int(ALIGNED.value)


@dataclass(frozen=True, kw_only=True)
class _Round:
    """What one pass found, on its way to main memory."""

    table: _Table
    counts: torch.Tensor
    """Of each program."""
    positions: torch.Tensor
    values: torch.Tensor
    arrived: torch.cuda.Event | None


class DeviceChanges:
    """What changed since the last time, readable once it has arrived."""

    def __init__(self, layout: StateLayout, rounds: list[_Round]) -> None:
        self.layout = layout
        self._rounds = rounds

    def by_block(self) -> dict[int, Sparse]:
        """Waits for the GPU."""
        found: dict[int, list[Sparse]] = {}
        for round_ in self._rounds:
            if round_.arrived is not None:
                round_.arrived.synchronize()
            for block, positions, values in _split(round_):
                found.setdefault(block, []).append(Sparse(positions, values))
        return {block: in_order(parts) for block, parts in found.items()}


def _split(round_: _Round) -> Iterator[tuple[int, Positions, Elements]]:
    positions = round_.positions.numpy().view(np.uint32)
    values = round_.values.numpy()
    values = values.view({2: np.uint16, 4: np.uint32}[values.itemsize])
    found = np.add.reduceat(round_.counts.numpy(), round_.table.first_programs, dtype=np.int64)
    ends = np.cumsum(found)
    for block, begin, end in zip(round_.table.blocks, ends - found, ends, strict=True):
        if end > begin:
            yield block, positions[begin:end], values[begin:end]


@dataclass(frozen=True, kw_only=True)
class _Table:
    """What the programs of a pass look at: a row each for tensor, first element, length and place in the block."""

    names: tuple[str, ...]
    chunks: torch.Tensor
    blocks: list[int]
    first_programs: list[int]
    """Of each of the blocks."""
    elements: int
    aligned: bool


class DeviceShadow:
    """Of what one rank holds of a model, on one device and in one published type. Tensors keep their names and shapes;
    they may lie elsewhere the next time.
    """

    def __init__(
        self,
        layout: StateLayout,
        tensors: Mapping[str, torch.Tensor],
        *,
        published: torch.dtype,
        segments: Sequence[Segment] | None = None,
        capacity: int | None = None,
    ) -> None:
        """`segments` are the parts of blocks that the tensors are; without them the tensors are whole. `capacity`
        changes are taken in a pass; all of a program's have to fit.
        """
        if capacity is not None and capacity < CHUNK:
            raise ValueError(f"capacity: at least {CHUNK}, got {capacity}")
        if segments is None:
            segments = BlockShares.of(layout, ranks=1, spread=frozenset()).held_by(0)
        self._layout = layout
        self._segments = segments
        self._capacity = capacity
        self._published = published
        self._olds = {name: tensor.to(published, copy=True).contiguous() for name, tensor in tensors.items()}
        self._tables: dict[tuple[str, ...], _Table] = {}
        self._room: Room | None = None

    @staticmethod
    def fits(tensors: Mapping[str, torch.Tensor], *, published: torch.dtype) -> bool:
        """Whether it can keep these: floats of one type that lie in one piece."""
        return len({tensor.dtype for tensor in tensors.values()}) == 1 and all(
            comparable(tensor, published=published) for tensor in tensors.values()
        )

    def take(self, tensors: Mapping[str, torch.Tensor]) -> DeviceChanges:
        """What differs from the last time; from here on these are the last."""
        device = next(iter(tensors.values())).device
        table = self._table(tuple(tensors), device=device)
        if not table.blocks:
            return DeviceChanges(self._layout, [])
        room = self._room_for(table, device=device)
        sources = _addresses(tensors[name] for name in table.names)
        olds = _addresses(self._olds[name] for name in table.names)
        source = next(iter(tensors.values())).dtype
        rounds: list[_Round] = []
        while True:
            begins, counts = launch(sources, olds, table.chunks, room, source=source, aligned=table.aligned)
            found = int(room.taken.item())
            if found:
                rounds.append(_collected(begins, counts, room, table))
            if found <= room.capacity:
                return DeviceChanges(self._layout, rounds)

    def _table(self, names: tuple[str, ...], *, device: torch.device) -> _Table:
        if names not in self._tables:
            self._tables[names] = _table(self._layout, self._segments, names, device=device)
        return self._tables[names]

    def _room_for(self, table: _Table, *, device: torch.device) -> Room:
        capacity = self._capacity or max(_LEAST_ROOM, table.elements // _ROOM_SHARE)
        if self._room is None or self._room.capacity < capacity:
            self._room = Room(capacity=capacity, published=self._published, device=device)
        return self._room


def _table(layout: StateLayout, segments: Sequence[Segment], names: tuple[str, ...], *, device: torch.device) -> _Table:
    number = {name: place for place, name in enumerate(names)}
    rows = [np.empty((4, 0), dtype=np.int64)]
    blocks: list[int] = []
    first_programs: list[int] = []
    programs = 0
    for segment in segments:
        if segment.tensor not in number:
            continue
        firsts = np.arange(segment.first, segment.last, CHUNK)
        places = segment.at // layout.blocks[segment.block].element.width + firsts - segment.first
        lengths = np.minimum(CHUNK, segment.last - firsts)
        rows.append(np.stack([np.full_like(firsts, number[segment.tensor]), firsts, lengths, places]))
        if not blocks or blocks[-1] != segment.block:
            blocks.append(segment.block)
            first_programs.append(programs)
        programs += firsts.size
    chunks = np.concatenate(rows, axis=1)
    return _Table(
        names=names,
        chunks=torch.from_numpy(chunks).to(device),
        blocks=blocks,
        first_programs=first_programs,
        elements=int(chunks[2].sum()),
        aligned=not (chunks[1] % _ALIGNED).any(),
    )


def _addresses(tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    held = list(tensors)
    return torch.tensor([tensor.data_ptr() for tensor in held], dtype=torch.int64).to(held[0].device)


def _collected(begins: torch.Tensor, counts: torch.Tensor, room: Room, table: _Table) -> _Round:
    """The changes in the order of the programs, who wrote them in the order in which they came."""
    total = torch.cumsum(counts, 0)
    shift = torch.repeat_interleave(begins - (total - counts), counts)
    order = shift + torch.arange(shift.numel(), device=shift.device)
    kept = [_to_host(tensor) for tensor in (counts, room.positions[order], room.values[order])]
    arrived = torch.cuda.Event() if counts.is_cuda else None  # type: ignore[no-untyped-call]
    if arrived is not None:
        arrived.record()
    return _Round(table=table, counts=kept[0], positions=kept[1], values=kept[2], arrived=arrived)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
