"""A rank's share in main memory as it is going to lie in its file, so that parts of the file are sent from there.

Only the plan of what a rank has to write is torch.distributed.checkpoint's. Its writer makes a whole file in memory a
second time, and its coordination sends pickled plans between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trimtab.trainer.checkpoints.layout import FileLayout, Shard
from trimtab.trainer.checkpoints.parts import PART_BYTES, part_bytes_for


@dataclass(frozen=True, kw_only=True)
class _Block:
    """The memory of a part. `body` is the same memory, as boto3 sends it without a copy. What a GPU copies to is
    pinned, and has none.
    """

    memory: torch.Tensor
    body: bytearray | None

    @classmethod
    def of(cls, size: int, *, pinned: bool) -> _Block:
        if pinned:
            return cls(memory=torch.empty(size, dtype=torch.uint8, pin_memory=True), body=None)
        body = bytearray(size)
        # Written to at once: until then it is not taken from the system, and the copy would wait for that.
        return cls(memory=torch.frombuffer(body, dtype=torch.uint8).zero_(), body=body)


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """Stays as it is until the next is staged."""

    header: bytes
    size: int
    part_bytes: int
    blocks: tuple[_Block, ...]
    """One for each part; the last may be longer than its part."""

    def part(self, number: int) -> bytearray:
        """Not to be changed. torch lets other threads run where it has to copy."""
        count = min(self.part_bytes, self.size - number * self.part_bytes)
        block = self.blocks[number]
        if block.body is not None and len(block.body) == count:
            return block.body
        body = bytearray(count)
        torch.frombuffer(body, dtype=torch.uint8).copy_(block.memory[:count])
        return body


class Staging:
    """Copies shards to main memory, once. The memory is used again for the next copy, so there must not be two
    checkpoints under way.
    """

    def __init__(self, *, part_bytes: int = PART_BYTES) -> None:
        self._part_bytes = part_bytes
        self._blocks: list[_Block] = []

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the memory that a copy of these needs. That takes longer than the copy itself, so it is done before."""
        layout = FileLayout.of(shard for shard, _ in _shards_of(tensors))
        self._take(layout.size, pinned=_on_gpu(tensors))

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, torch.Tensor]) -> StagedFile:
        values = {shard.name: (shard, held) for shard, held in _shards_of(tensors)}
        layout = FileLayout.of(shard for shard, _ in values.values())
        on_gpu = _on_gpu(tensors)
        part_bytes = self._take(layout.size, pinned=on_gpu)
        self._write(0, torch.frombuffer(bytearray(layout.header), dtype=torch.uint8), part_bytes)
        for placed in layout.shards:
            if placed.shard.size:
                _, held = values[placed.shard.name]
                self._write(placed.begin, held.contiguous().reshape(-1).view(torch.uint8), part_bytes)
        if on_gpu:
            torch.cuda.synchronize()
        return StagedFile(header=layout.header, size=layout.size, part_bytes=part_bytes, blocks=tuple(self._blocks))

    def _take(self, size: int, *, pinned: bool) -> int:
        """Enough blocks; the bytes of each."""
        part_bytes = part_bytes_for(size, at_least=self._part_bytes)
        if self._blocks and len(self._blocks[0].memory) != part_bytes:
            self._blocks.clear()
        while len(self._blocks) * part_bytes < size:
            self._blocks.append(_Block.of(part_bytes, pinned=pinned))
        return part_bytes

    def _write(self, position: int, body: torch.Tensor, part_bytes: int) -> None:
        while len(body):
            number, within = divmod(position, part_bytes)
            target = self._blocks[number].memory[within : within + len(body)]
            target.copy_(body[: len(target)], non_blocking=True)
            position, body = position + len(target), body[len(target) :]


def _shards_of(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[Shard, torch.Tensor]]:
    """What this rank holds of them."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors))
    for item in planner.create_local_plan().items:
        held = planner.resolve_data(item)
        assert isinstance(held, torch.Tensor)
        assert item.tensor_data is not None
        offsets = tuple(item.tensor_data.chunk.offsets)
        yield Shard(name=item.index.fqn, dtype=held.dtype, shape=tuple(held.shape), offsets=offsets), held.detach()


def _on_gpu(tensors: Mapping[str, torch.Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors.values())
