"""Keys to reconcile: each once however often it was added, never two workers on one, and all tenants in turn.

Of one tenant's keys the longest waiting comes first. A tenant with ten thousand of them, or with slow ones, holds up
its own: others have the next turn, and some of the workers are never its.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K")
_NO_TENANT = object()


class WorkQueue(Generic[K]):
    """Level-triggered: a key says that something may have changed, not what. A key that is added while it is worked on
    goes to the back when that is done."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        tenant: Callable[[K], Hashable] = lambda key: None,
        at_once: int | None = None,
    ) -> None:
        """`tenant` says whose a key is; `at_once` is how many workers one tenant may have, None for all."""
        self._clock = clock
        self._tenant = tenant
        self._at_once = at_once
        self._waiting: dict[Hashable, dict[K, float]] = {}
        """By tenant, in the order of their turns."""
        self._workers: Counter[Hashable] = Counter()
        self._detached: set[K] = set()
        self._busy: dict[K, float] = {}
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._some = asyncio.Event()

    def add(self, key: K) -> None:
        if key in self._busy:
            self._again.add(key)
            return
        own = self._waiting.setdefault(self._tenant(key), {})
        if key not in own:
            own[key] = self._clock()
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
        while (tenant := self._next_tenant()) is _NO_TENANT:
            self._some.clear()
            await self._some.wait()
        own = self._waiting.pop(tenant)
        key = next(iter(own))
        del own[key]
        if own:
            self._waiting[tenant] = own
        self._busy[key] = self._clock()
        self._workers[tenant] += 1
        return key

    def detach(self, key: K) -> None:
        """It is worked on without a worker from here on."""
        self._detached.add(key)
        self._free(key)

    def done(self, key: K) -> None:
        del self._busy[key]
        if key in self._detached:
            self._detached.discard(key)
        else:
            self._free(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _next_tenant(self) -> Hashable:
        for tenant in self._waiting:
            if self._at_once is None or self._workers[tenant] < self._at_once:
                return tenant
        return _NO_TENANT

    def _free(self, key: K) -> None:
        tenant = self._tenant(key)
        self._workers[tenant] -= 1
        if not self._workers[tenant]:
            del self._workers[tenant]
        self._some.set()

    @property
    def waiting(self) -> frozenset[K]:
        return frozenset(key for own in self._waiting.values() for key in own)

    @property
    def depth(self) -> int:
        return sum(len(own) for own in self._waiting.values())

    @property
    def oldest_s(self) -> float:
        """How long the one has waited that has waited longest."""
        since = [next(iter(own.values())) for own in self._waiting.values()]
        return self._clock() - min(since) if since else 0.0

    @property
    def busy_since(self) -> float | None:
        """When the longest running work began."""
        return min(self._busy.values(), default=None)

    def _ring(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
