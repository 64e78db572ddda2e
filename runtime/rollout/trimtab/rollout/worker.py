"""The rollout worker: pulls prompt groups by capacity, runs them, publishes what they brought, drains when told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnavailable, PayloadTooLarge
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import ConsumerSpec, JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import OversizeError, WireError
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
_WINDOW_MESSAGES = 256
_WINDOW_BYTES = 32 << 20
# Of the grace period, kept for handing back what is not finished: whoever kills us at its end does not wait for it.
_HAND_BACK_S = 5.0
# Deliveries beyond those that count, for hand-backs of draining workers. A task that has used these too kills workers.
_SPARE_DELIVERIES = 20


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
        """Samples with a reward that are stored."""
        self.failures: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def run(self, stopping: asyncio.Event) -> None:
        # No limit on deliveries: a task that the server stops delivering is lost without a word, where one that is
        # given up here is published as a failure.
        spec = ConsumerSpec(
            name=CONSUMER, stream=self._topology.tasks.name, ack_wait_s=self._lease_s, max_ack_pending=100_000
        )
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
                await _returned(delivery)
                continue
            task = asyncio.create_task(self._serve(delivery))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_not_settled", error=repr(task.exception()))

    async def _serve(self, delivery: Delivery) -> None:
        """Settle one delivery, whatever happens: acknowledged, given back, or refused for good."""
        try:
            task = decode(delivery.payload, Task)
        except WireError as error:
            _log.error("task_refused", sequence=delivery.sequence, reason=str(error))
            await delivery.term(reason=str(error))
            return
        heartbeat = asyncio.create_task(self._keep(delivery))
        try:
            await self._settle(delivery, task)
        except BusError as error:
            _log.warning("group_not_published", sequence=delivery.sequence, error=str(error))
            await _returned(delivery, delay_s=_RETRY_DELAY_S)
        except asyncio.CancelledError:
            await _returned(delivery)
            raise
        finally:
            heartbeat.cancel()

    async def _settle(self, delivery: Delivery, task: Task) -> None:
        if delivery.attempt > self._max_deliveries + _SPARE_DELIVERIES:
            often = EpisodeFailed("delivered-too-often", f"given out {delivery.attempt} times and never finished")
            await self._give_up(delivery, task, often)
            return
        try:
            trajectories = await self._runner.run(task)
            await self._publish(trajectories)
        except (PayloadTooLarge, WireError) as error:
            # The same prompt would bring the same again: not worth another attempt.
            kind = "trajectory-refused"
            if isinstance(error, PayloadTooLarge | OversizeError):
                kind = "trajectory-too-large"
            await self._give_up(delivery, task, EpisodeFailed(kind, str(error)))
        except EpisodeFailed as failure:
            if delivery.attempt >= self._max_deliveries:
                await self._give_up(delivery, task, failure)
            else:
                self._note(failure, task, attempt=delivery.attempt)
                await delivery.nak(delay_s=_RETRY_DELAY_S)
        else:
            # Acknowledged only when every trajectory is stored; a crash before this line repeats the group, and the
            # copies of what is there already are recognised by their ids.
            await delivery.ack_confirmed(deadline_s=_ACK_DEADLINE_S)
            self.completed += len(trajectories)

    async def _give_up(self, delivery: Delivery, task: Task, failure: EpisodeFailed) -> None:
        self._note(failure, task, attempt=delivery.attempt)
        await self._publish(self._runner.failed(task, failure))
        await delivery.ack_confirmed(deadline_s=_ACK_DEADLINE_S)

    def _note(self, failure: EpisodeFailed, task: Task, *, attempt: int) -> None:
        self.failures[failure.kind] += 1
        _log.warning("group_failed", task=task.task_id, attempt=attempt, error=failure.kind, why=str(failure))

    async def _publish(self, trajectories: Sequence[Trajectory]) -> None:
        """Through a window of the group's own: one that has failed takes nothing more, and fails only this group."""
        frames = [(trajectory, encode(trajectory), headers(trajectory)) for trajectory in trajectories]
        async with WindowedPublisher(
            self._bus, max_messages=_WINDOW_MESSAGES, max_bytes=_WINDOW_BYTES, deadline_s=_PUBLISH_DEADLINE_S
        ) as publisher:
            for trajectory, frame, header in frames:
                subject = self._topology.trajectory_subject(trajectory.policy)
                await publisher.publish(subject, frame, message_id=trajectory.trajectory_id, headers=header)

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
            await asyncio.wait(self._running, timeout=max(0.0, self._grace_s - _HAND_BACK_S))

    async def _hand_back(self) -> None:
        late = list(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        _log.info("drained", handed_back=len(late))


async def _returned(delivery: Delivery, *, delay_s: float = 0.0) -> None:
    """Give it back; if even that fails, its lease runs out and it goes to another."""
    with contextlib.suppress(BusError):
        await delivery.nak(delay_s=delay_s)
