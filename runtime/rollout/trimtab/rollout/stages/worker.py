"""The worker of one stage in a pod: as many groups at once as it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.topology import JobTopology
from trimtab.rollout.stages.server import StageServer
from trimtab.rollout.worker.concurrency import Occupancy
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, WorkerTimings
from trimtab.rollout.worker.pulling import Pulling, Room


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
        self.server = server
        self.ceiling = ceiling
        self.draining = server.draining
        self._wait_s = timings.pull_wait_s
        freed = asyncio.Event()
        self.occupancy = Occupancy(clock=clock, freed=freed.set)
        self._pulling = Pulling(
            bus,
            topology.stage_consumer(server.stage, lease_s=lease_s),
            self,
            queue=server.stage,
            grace_s=grace_s,
            freed=freed,
            timings=timings,
        )

    @property
    def in_flight(self) -> int:
        """Groups that are begun and not settled."""
        return self._pulling.in_flight

    async def run(self, stopping: asyncio.Event) -> None:
        await self._pulling.run(stopping)

    def room(self) -> Room:
        return Room(free=self.occupancy.free(self.ceiling), wait_s=self._wait_s)

    def begin(self, delivery: Delivery) -> Coroutine[None, None, None]:
        occupancy = self.occupancy.take()
        occupancy.begin()

        async def serve() -> None:
            try:
                await self.server.serve(delivery)
            finally:
                occupancy.vacate()

        return serve()

    async def hand_back(self, delivery: Delivery) -> None:
        await self.server.hand_back(delivery)
