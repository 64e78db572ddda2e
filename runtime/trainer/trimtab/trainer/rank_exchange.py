"""How ranks tell one another what each has written, beside the steps that their main threads are in the midst of."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import torch
import torch.distributed as dist

from trimtab.trainer import ranks

# Longer than any rank goes on trying to write what it has to.
_TIMEOUT = timedelta(hours=2)


class RankExchange:
    """All ranks make it together, and come to it equally often. It has a process group of its own, so that it never
    gets between a step's sums, nor between what another one gathers.
    """

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        if ranks.world_size() > 1:
            group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            assert isinstance(group, dist.ProcessGroup)
            self._group = group

    @property
    def size(self) -> int:
        return ranks.world_size()

    @property
    def signs(self) -> bool:
        return ranks.rank() == 0

    async def gather(self, word: bytes) -> list[bytes]:
        """What each rank came with, once all have come. A rank that dies is an error on all others."""
        if self._group is None:
            return [word]
        return await asyncio.to_thread(self._gather, word)

    def _gather(self, word: bytes) -> list[bytes]:
        own_size = torch.tensor([len(word)])
        sizes = [torch.empty_like(own_size) for _ in range(self.size)]
        dist.all_gather(sizes, own_size, group=self._group)
        own = torch.zeros(max(1, *map(int, sizes)), dtype=torch.uint8)
        if word:
            own[: len(word)] = torch.frombuffer(bytearray(word), dtype=torch.uint8)
        words = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(words, own, group=self._group)
        return [one[: int(size)].numpy().tobytes() for one, size in zip(words, sizes, strict=True)]
