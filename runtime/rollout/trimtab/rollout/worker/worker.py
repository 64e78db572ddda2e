"""The rollout worker: prompt groups are pulled by what its engines bear, and by how fresh its weights are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.topology import JobTopology
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.worker.concurrency import Concurrency, Occupancy, TaskOccupancy
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, TaskServer, WorkerTimings
from trimtab.rollout.worker.pulling import Pulling, Room

_log = structlog.get_logger(__name__)


class Worker:
    """Runs until `stopping`, then finishes what it has within the grace period and hands back the rest."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        server: TaskServer,
        freshness: Freshness,
        concurrency: Concurrency,
        *,
        lease_s: float,
        grace_s: float,
        clock: Callable[[], float],
        timings: WorkerTimings = WORKER_TIMINGS,
    ) -> None:
        self._server = server
        self._freshness = freshness
        self._concurrency = concurrency
        self._clock = clock
        self._timings = timings
        freed = asyncio.Event()
        self.occupancy = Occupancy(clock=clock, freed=freed.set)
        self.draining = server.draining
        self._pulling = Pulling(
            bus,
            topology.task_consumer(lease_s=lease_s),
            self,
            queue="rollouts",
            grace_s=grace_s,
            freed=freed,
            timings=timings,
        )
        self._behind_since: float | None = None
        self._said_behind = False

    @property
    def in_flight(self) -> int:
        """Groups that are begun and not settled. Of some only the slowest episodes still run, so there may be more of
        them than `allowance` says.
        """
        return self._pulling.in_flight

    @property
    def load(self) -> int:
        """What of `allowance` is taken."""
        return self.occupancy.load

    @property
    def completed(self) -> int:
        return self._server.completed

    @property
    def failures(self) -> Counter[str]:
        return self._server.failures

    @property
    def allowance(self) -> int:
        """How many tasks' episodes it may run now: as many as its engines bear, fewer while its weights are behind."""
        return self._freshness.allowance(self._concurrency.limit)

    async def run(self, stopping: asyncio.Event) -> None:
        await self._pulling.run(stopping)

    def room(self) -> Room:
        allowed = self.allowance
        self._watch_lag(allowed)
        held_back = allowed < self._concurrency.limit
        return Room(
            free=self.occupancy.free(allowed),
            wait_s=self._timings.weights_poll_s if held_back else self._timings.pull_wait_s,
        )

    def begin(self, delivery: Delivery) -> Coroutine[None, None, None]:
        return self._serve(delivery, self.occupancy.take())

    async def _serve(self, delivery: Delivery, occupancy: TaskOccupancy) -> None:
        try:
            await self._server.serve(delivery, occupancy)
        finally:
            occupancy.vacate()

    async def hand_back(self, delivery: Delivery) -> None:
        await self._server.hand_back(delivery)

    def _watch_lag(self, allowed: int) -> None:
        """Say once when the weights stay too old for any task. They are still fetched, again and again."""
        if allowed > 0:
            self._behind_since, self._said_behind = None, False
            return
        now = self._clock()
        if self._behind_since is None:
            self._behind_since = now
        if not self._said_behind and now - self._behind_since >= self._timings.behind_warning_s:
            _log.warning("no_tasks_until_weights_are_fresh", lag=self._freshness.lag)
            self._said_behind = True
