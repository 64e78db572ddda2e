"""The rollout worker: pulls prompt groups by what it may have, serves them side by side, drains when told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import JobTopology
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.worker.concurrency import Concurrency, Occupancy, TaskOccupancy
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, TaskServer, WorkerTimings

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
        self._bus = bus
        self._topology = topology
        self._server = server
        self._freshness = freshness
        self._concurrency = concurrency
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._clock = clock
        self._timings = timings
        self._running: set[asyncio.Task[None]] = set()
        self._failed_pulls = 0
        self._freed = asyncio.Event()
        self.occupancy = Occupancy(clock=clock, freed=self._freed.set)
        self._behind_since: float | None = None
        self._said_behind = False

    @property
    def draining(self) -> bool:
        return self._server.draining.is_set()

    @property
    def in_flight(self) -> int:
        """Groups that are begun and not settled. Of some only the slowest episodes still run, so there may be more of
        them than `allowance` says.
        """
        return len(self._running)

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
        spec = self._topology.task_consumer(lease_s=self._lease_s)
        await declare_consumer(self._bus, spec, deadline_s=30.0)
        try:
            # Closed before anything is handed back: a pull that is still open would be given it again.
            async with await Puller.open(self._bus, stream=spec.stream, consumer=spec.name) as puller:
                while not stopping.is_set():
                    await self._take(puller, stopping)
            await self._drain()
        finally:
            await self._hand_back()

    async def _take(self, puller: Puller, stopping: asyncio.Event) -> None:
        allowed = self.allowance
        self._watch_lag(allowed)
        free = self.occupancy.free(allowed)
        if free <= 0:
            held_back = allowed < self._concurrency.limit
            await self._wait_for_room(self._timings.weights_poll_s if held_back else self._timings.pull_wait_s)
            return
        try:
            pulled = await puller.fetch(batch=free, wait_s=self._timings.pull_wait_s)
        except (BusTimeout, BusUnavailable) as error:
            _log.warning("pull_repeated", error=str(error))
            await asyncio.sleep(self._timings.pull_backoff.delay_s(self._failed_pulls))
            self._failed_pulls += 1
            return
        self._failed_pulls = 0
        if stopping.is_set():
            await asyncio.gather(*(self._server.hand_back(delivery) for delivery in pulled))
            return
        for delivery in pulled:
            self._begin(delivery)

    def _begin(self, delivery: Delivery) -> None:
        occupancy = self.occupancy.take()
        task = asyncio.create_task(self._server.serve(delivery, occupancy))
        self._running.add(task)
        task.add_done_callback(partial(self._finished, occupancy))

    async def _wait_for_room(self, wait_s: float) -> None:
        """Until an episode or a task has ended, or it is time to look again whether more are allowed."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._freed.wait()

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

    def _finished(self, occupancy: TaskOccupancy, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        occupancy.vacate()
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_not_settled", error=repr(task.exception()))

    async def _drain(self) -> None:
        self._server.draining.set()
        _log.info("draining", in_flight=len(self._running), grace_s=self._grace_s)
        if self._running:
            await asyncio.wait(self._running, timeout=max(0.0, self._grace_s - self._timings.hand_back_s))

    async def _hand_back(self) -> None:
        late = list(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        _log.info("drained", handed_back=len(late))
