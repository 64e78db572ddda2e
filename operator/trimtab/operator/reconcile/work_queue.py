"""Keys to reconcile: each once however often it was added, never two workers on one, the longest waiting first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Level-triggered: a key says that something may have changed, not what. A key that is added while it is worked on
    goes to the back when that is done."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[K, float] = {}
        self._busy: dict[K, float] = {}
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._some = asyncio.Event()

    def add(self, key: K) -> None:
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = self._clock()
            self._some.set()

    def add_later(self, key: K, delay_s: float) -> None:
        """Once, after the delay. An earlier wish for the key stays; a later one gives way."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, delay_s)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._ring, key)

    def forget(self, key: K) -> None:
        """No timer for it any more."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> K:
        """Waits as long as there is nothing to do. Say `done` afterwards."""
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._busy[key] = self._clock()
        return key

    def done(self, key: K) -> None:
        del self._busy[key]
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    @property
    def waiting(self) -> frozenset[K]:
        return frozenset(self._waiting)

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def oldest_s(self) -> float:
        """How long the next one has waited."""
        return self._clock() - next(iter(self._waiting.values())) if self._waiting else 0.0

    @property
    def busy_since(self) -> float | None:
        """When the longest running work began."""
        return min(self._busy.values(), default=None)

    def _ring(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
