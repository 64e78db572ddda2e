"""The worker of one stage in a pod: pulls groups by what it may have, serves them side by side, drains when told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import JobTopology
from trimtab.rollout.stages.server import StageServer
from trimtab.rollout.worker.concurrency import Occupancy
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, WorkerTimings

_log = structlog.get_logger(__name__)
_DECLARE_DEADLINE_S = 30.0


class StageWorker:
    """Runs until `stopping`, then finishes what it has within the grace period and hands back the rest."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        server: StageServer,
        *,
        ceiling: int,
        lease_s: float,
        grace_s: float,
        clock: Callable[[], float],
        timings: WorkerTimings = WORKER_TIMINGS,
    ) -> None:
        """`ceiling` is how many groups it may have at once."""
        self._bus = bus
        self._topology = topology
        self.server = server
        self.ceiling = ceiling
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._timings = timings
        self._running: set[asyncio.Task[None]] = set()
        self._failed_pulls = 0
        self._freed = asyncio.Event()
        self.occupancy = Occupancy(clock=clock)

    @property
    def in_flight(self) -> int:
        """Groups that are begun and not settled."""
        return len(self._running)

    async def run(self, stopping: asyncio.Event) -> None:
        spec = self._topology.stage_consumer(self.server.stage, lease_s=self._lease_s)
        await declare_consumer(self._bus, spec, deadline_s=_DECLARE_DEADLINE_S)
        try:
            # Closed before anything is handed back: a pull that is still open would be given it again.
            async with await Puller.open(self._bus, stream=spec.stream, consumer=spec.name) as puller:
                while not stopping.is_set():
                    await self._take(puller, stopping)
            await self._drain()
        finally:
            await self._hand_back()

    async def _take(self, puller: Puller, stopping: asyncio.Event) -> None:
        free = self.ceiling - len(self._running)
        if free <= 0:
            await self._wait_for_room()
            return
        try:
            pulled = await puller.fetch(batch=free, wait_s=self._timings.pull_wait_s)
        except (BusTimeout, BusUnavailable) as error:
            _log.warning("pull_repeated", stage=self.server.stage, error=str(error))
            await asyncio.sleep(self._timings.pull_backoff.delay_s(self._failed_pulls))
            self._failed_pulls += 1
            return
        self._failed_pulls = 0
        if stopping.is_set():
            await asyncio.gather(*(self.server.hand_back(delivery) for delivery in pulled))
            return
        for delivery in pulled:
            self._begin(delivery)

    def _begin(self, delivery: Delivery) -> None:
        self.occupancy.work(1.0)
        task = asyncio.create_task(self.server.serve(delivery))
        self._running.add(task)
        task.add_done_callback(self._finished)

    async def _wait_for_room(self) -> None:
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timings.pull_wait_s):
                await self._freed.wait()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.occupancy.work(-1.0)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_not_settled", stage=self.server.stage, error=repr(task.exception()))

    async def _drain(self) -> None:
        self.server.draining.set()
        if self._running:
            await asyncio.wait(self._running, timeout=max(0.0, self._grace_s - self._timings.hand_back_s))

    async def _hand_back(self) -> None:
        late = list(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        _log.info("stage_drained", stage=self.server.stage, handed_back=len(late))
