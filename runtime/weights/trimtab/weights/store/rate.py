"""A ceiling on how fast a process fetches, so that new weights do not take the network from what the pool serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_SHORTEST_RANGE = 64 << 10
_LONGEST_RANGE = 8 << 20
_RANGE_S = 0.25


class RateLimit:
    """A token bucket no deeper than one range: shared by all fetches, who take turns in the order they ask."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a rate of {bytes_per_s} bytes a second lets nothing through")
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    @property
    def range_bytes(self) -> int:
        """How much to ask for at once: little enough to be smooth, enough not to be all round trips."""
        return max(_SHORTEST_RANGE, min(_LONGEST_RANGE, int(self._bytes_per_s * _RANGE_S)))

    async def take(self, count: int) -> None:
        """Returns when `count` bytes may be fetched."""
        now = self._clock()
        turn = max(now, self._free_at)
        self._free_at = turn + count / self._bytes_per_s
        if turn > now:
            await self._sleep(turn - now)
