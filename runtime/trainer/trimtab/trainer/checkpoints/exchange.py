"""How the ranks tell each other that their files are there, while their main threads are in the midst of a step."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist

from trimtab.trainer import ranks
from trimtab.trainer.checkpoints.index import CheckpointFile

_PART_BYTES = 2048
# Longer than any rank goes on trying to write its file.
_TIMEOUT = timedelta(hours=2)


class WrittenPart(msgspec.Struct, frozen=True, tag=True):
    """This rank's file is there."""

    file: CheckpointFile


class FailedPart(msgspec.Struct, frozen=True, tag=True):
    """It could not be written."""

    rank: int
    reason: str


Part = WrittenPart | FailedPart


class PartExchange:
    """All ranks make it together. It has a process group of its own, so that it never gets between a step's sums."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        if ranks.world_size() > 1:
            group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            assert isinstance(group, dist.ProcessGroup)
            self._group = group

    async def gather(self, part: Part) -> list[Part]:
        """The parts of all ranks, once each has come with its own. A rank that dies is an error on all others."""
        if self._group is None:
            return [part]
        return await asyncio.to_thread(self._gather, part)

    def _gather(self, part: Part) -> list[Part]:
        if isinstance(part, FailedPart):
            part = msgspec.structs.replace(part, reason=part.reason[: _PART_BYTES // 8])
        body = msgspec.json.encode(part)
        own = torch.zeros(_PART_BYTES, dtype=torch.uint8)
        own[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        everyone = [torch.empty_like(own) for _ in range(ranks.world_size())]
        dist.all_gather(everyone, own, group=self._group)
        return [msgspec.json.decode(bytes(one.tolist()).rstrip(b"\0"), type=Part) for one in everyone]
