"""The rollout worker: pulls prompt groups by capacity, runs them, publishes what they brought, drains when told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnavailable
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import ConsumerSpec, JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.rollout.episodes import EpisodeFailed, GroupRunner

_log = structlog.get_logger(__name__)
CONSUMER = "rollout"
_PULL_WAIT_S = 2.0
_RETRY_DELAY_S = 1.0
_ACK_DEADLINE_S = 30.0
_PUBLISH_DEADLINE_S = 60.0


class Worker:
    """Runs until `stopping`, then finishes what it has within the grace period and hands back the rest."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        runner: GroupRunner,
        *,
        max_tasks: int,
        lease_s: float,
        max_deliveries: int,
        grace_s: float,
    ) -> None:
        self._bus = bus
        self._topology = topology
        self._runner = runner
        self._max_tasks = max_tasks
        self._lease_s = lease_s
        self._max_deliveries = max_deliveries
        self._grace_s = grace_s
        self._running: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self.draining = False
        self.completed = 0
        self.failures: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def run(self, stopping: asyncio.Event) -> None:
        spec = ConsumerSpec(
            name=CONSUMER,
            stream=self._topology.tasks.name,
            ack_wait_s=self._lease_s,
            # One more than we try: the last delivery is for reporting the failure, should that have failed before.
            max_deliver=self._max_deliveries + 1,
            max_ack_pending=100_000,
        )
        await declare_consumer(self._bus, spec, deadline_s=30.0)
        publisher = WindowedPublisher(self._bus, max_messages=256, max_bytes=32 << 20, deadline_s=_PUBLISH_DEADLINE_S)
        async with publisher, await Puller.open(self._bus, stream=spec.stream, consumer=spec.name) as puller:
            while not stopping.is_set():
                await self._take(puller, publisher, stopping)
            await self._drain()

    async def _take(self, puller: Puller, publisher: WindowedPublisher, stopping: asyncio.Event) -> None:
        free = self._max_tasks - len(self._running)
        if free <= 0:
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PULL_WAIT_S):
                    await self._freed.wait()
            return
        try:
            pulled = await puller.fetch(batch=free, wait_s=_PULL_WAIT_S)
        except (BusTimeout, BusUnavailable) as error:
            _log.warning("pull_repeated", error=str(error))
            await asyncio.sleep(_RETRY_DELAY_S)
            return
        for delivery in pulled:
            if stopping.is_set():
                await delivery.nak()
                continue
            task = asyncio.create_task(self._serve(delivery, publisher))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_not_settled", error=str(task.exception()))

    async def _serve(self, delivery: Delivery, publisher: WindowedPublisher) -> None:
        try:
            task = decode(delivery.payload, Task)
        except WireError as error:
            _log.error("task_refused", sequence=delivery.sequence, reason=str(error))
            await delivery.term(reason=str(error))
            return
        heartbeat = asyncio.create_task(self._keep(delivery))
        try:
            trajectories = await self._runner.run(task)
        except EpisodeFailed as failure:
            self.failures[failure.kind] += 1
            _log.warning(
                "group_failed", task=task.task_id, attempt=delivery.attempt, error=failure.kind, why=str(failure)
            )
            if delivery.attempt < self._max_deliveries:
                await delivery.nak(delay_s=_RETRY_DELAY_S)
                return
            trajectories = self._runner.failed(task, failure)
        except asyncio.CancelledError:
            with contextlib.suppress(BusError):
                await delivery.nak()
            raise
        finally:
            heartbeat.cancel()
        await self._publish(trajectories, publisher)
        # Acknowledged only when every trajectory is stored; a crash before this line repeats the group, and the copies
        # of what is there already are recognised by their ids.
        await delivery.ack_confirmed(deadline_s=_ACK_DEADLINE_S)
        self.completed += len(trajectories)

    async def _publish(self, trajectories: list[Trajectory], publisher: WindowedPublisher) -> None:
        for trajectory in trajectories:
            await publisher.publish(
                self._topology.trajectory_subject(trajectory.policy),
                encode(trajectory),
                message_id=trajectory.trajectory_id,
                headers=headers(trajectory),
            )
        await publisher.flush()

    async def _keep(self, delivery: Delivery) -> None:
        """Tell the queue that we are still at it, well before it would give the task to another."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            with contextlib.suppress(BusError):
                await delivery.in_progress()

    async def _drain(self) -> None:
        self.draining = True
        _log.info("draining", in_flight=len(self._running), grace_s=self._grace_s)
        if self._running:
            await asyncio.wait(self._running, timeout=self._grace_s)
        late = list(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        _log.info("drained", handed_back=len(late))
