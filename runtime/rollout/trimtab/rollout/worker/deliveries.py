"""Serves one delivery of a task to its end: run and stored, handed back, or given up and put into quarantine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusNotFound, PayloadTooLarge
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.names import Headers, encoded_size
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.objects.errors import StoreRefused, StoreTimeout, StoreUnauthorized, StoreUnavailable
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import OversizeError, WireError
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Scored, Trajectory
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.worker.concurrency import TaskOccupancy
from trimtab.rollout.worker.episodes import GroupRunner
from trimtab.rollout.worker.failures import EpisodeFailed, FailureTally, TaskRefused
from trimtab.rollout.worker.full_store import when_there_is_room
from trimtab.rollout.worker.held_delivery import keep, weights_arrived
from trimtab.rollout.worker.metrics import HandBack, RolloutMetrics
from trimtab.rollout.worker.quarantine import Quarantine

_log = structlog.get_logger(__name__)
_WINDOW_MESSAGES = 256
_WINDOW_BYTES = 32 << 20
_PULL_BACKOFF = FullJitter(base_s=1.0, cap_s=10.0)
_PUBLISH_BACKOFF = FullJitter(base_s=1.0, cap_s=10.0)


@dataclass(frozen=True, kw_only=True)
class WorkerTimings:
    """How long a worker waits for what. Times that users choose, such as leases, are in the manifest."""

    pull_wait_s: float = 2.0
    """For a task, before it looks again whether it may have any."""
    retry_delay_s: float = 1.0
    """Before a task is given out again."""
    pull_backoff: FullJitter = _PULL_BACKOFF
    """Before the bus is asked again for tasks."""
    weights_poll_s: float = 0.1
    """Between looks at the weights while they hold the worker or a task back."""
    behind_warning_s: float = 10.0
    """Every swap leaves a worker behind for a moment. One that is still behind after this has trouble."""
    hand_back_s: float = 5.0
    """Of the grace period, kept for handing back what is not finished: at its end the process is killed."""
    publish_deadline_s: float = 60.0
    """Of one attempt."""
    publish_backoff: FullJitter = _PUBLISH_BACKOFF
    """Between attempts at what a full store does not take."""
    ack_deadline_s: float = 30.0


WORKER_TIMINGS = WorkerTimings()


class HandBacks:
    """Counts the deliveries of a task that ended in a hand-back. The queue counts every delivery alike, but a worker
    that drains, weights that are late and a stream that is full are not the task's fault, and must not use up its
    attempts.

    Counts are kept by sequence in the queue. Only one worker has a task at a time; where a lease ran out there are two,
    and one count may be lost, which costs the task an attempt.
    """

    def __init__(self, bucket: KeyValue, *, queue: str = "", deadline_s: float = 2.0) -> None:
        """`queue` keeps the counts of one queue apart from those of others, whose sequences are the same. Twice
        `deadline_s` fits into the time that a draining worker keeps for handing back.
        """
        self._bucket = bucket
        self._prefix = f"{queue}." if queue else ""
        self._deadline_s = deadline_s

    async def add(self, delivery: Delivery) -> None:
        """A hand-back that cannot be counted counts as an attempt: a draining worker may have no time to repeat it."""
        try:
            count = await self._count(delivery) + 1
            await self._bucket.put(self._key(delivery), str(count).encode(), deadline_s=self._deadline_s)
        except BusError as error:
            _log.warning("hand_back_not_counted", sequence=delivery.sequence, error=str(error))

    async def attempts(self, delivery: Delivery) -> int:
        """Deliveries up to this one that were not handed back. All of them while the bus is away: a task is settled,
        too early if need be, rather than never.
        """
        try:
            return max(1, delivery.attempt - await self._count(delivery))
        except BusError as error:
            _log.warning("hand_backs_unknown", sequence=delivery.sequence, error=str(error))
            return delivery.attempt

    def _key(self, delivery: Delivery) -> str:
        return f"{self._prefix}{delivery.sequence}"

    async def _count(self, delivery: Delivery) -> int:
        if delivery.attempt == 1:
            return 0
        try:
            entry = await self._bucket.get(self._key(delivery), deadline_s=self._deadline_s)
        except BusNotFound:
            return 0
        return int(entry.value) if entry.value.isdigit() else 0


class TaskServer:
    """Settles every delivery it is given, whatever happens, and counts what came of them.

    `spare_deliveries` are those beyond the ones that count, for workers that died of something else. A task that has
    used these too kills workers.
    """

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        runner: GroupRunner,
        quarantine: Quarantine,
        hand_backs: HandBacks,
        freshness: Freshness,
        metrics: RolloutMetrics,
        claims: RowClaims,
        *,
        lease_s: float,
        max_deliveries: int,
        spare_deliveries: int = 20,
        clock: Callable[[], float],
        timings: WorkerTimings = WORKER_TIMINGS,
    ) -> None:
        self._bus = bus
        self._topology = topology
        self._runner = runner
        self._quarantine = quarantine
        self._hand_backs = hand_backs
        self._freshness = freshness
        self._metrics = metrics
        self._claims = claims
        self._lease_s = lease_s
        self._max_deliveries = max_deliveries
        self._spare_deliveries = spare_deliveries
        self._clock = clock
        self._timings = timings
        self.draining = asyncio.Event()
        """Set when the worker leaves: tasks that wait for weights are handed back at once."""
        self.completed = 0
        """Episodes with rows of a policy that are stored, counted for each role."""
        self._failures = FailureTally()

    @property
    def failures(self) -> Counter[str]:
        """Attempts at a group that failed, by kind."""
        return self._failures.counts

    async def serve(self, delivery: Delivery, occupancy: TaskOccupancy) -> None:
        heartbeat = asyncio.create_task(keep(delivery, lease_s=self._lease_s))
        try:
            try:
                await self._settle(delivery, occupancy)
            except (BusError, StoreUnavailable, StoreTimeout) as error:
                _log.warning("group_not_published", sequence=delivery.sequence, error=str(error))
                reason = HandBack.BUS if isinstance(error, BusError) else HandBack.STORE
                await self.hand_back(delivery, reason, delay_s=self._timings.retry_delay_s)
        except asyncio.CancelledError:
            await self.hand_back(delivery)
            raise
        finally:
            heartbeat.cancel()

    async def hand_back(
        self, delivery: Delivery, reason: HandBack = HandBack.DRAINING, *, delay_s: float = 0.0
    ) -> None:
        """Give it to another, and say that it was not the task's fault. If even that fails, its lease runs out."""
        self._metrics.handed_back(reason)
        await self._hand_backs.add(delivery)
        with contextlib.suppress(BusError):
            await delivery.nak(delay_s=delay_s)

    async def _settle(self, delivery: Delivery, occupancy: TaskOccupancy) -> None:
        try:
            task = decode(delivery.payload, Task)
        except WireError as error:
            await self._refuse(delivery, EpisodeFailed("task-unreadable", str(error)))
            return
        most = self._max_deliveries + self._spare_deliveries
        if delivery.attempt > most and (attempts := await self._hand_backs.attempts(delivery)) > most:
            often = EpisodeFailed("delivered-too-often", f"given out {attempts} times and never finished")
            await self._give_up(delivery, task, often, attempts=attempts)
        elif await self._weights_arrived(task):
            await self._run(delivery, task, occupancy)
        else:
            await self.hand_back(delivery, HandBack.WEIGHTS, delay_s=self._timings.retry_delay_s)

    async def _weights_arrived(self, task: Task) -> bool:
        return await weights_arrived(
            self._freshness,
            task.minimum_versions,
            task_id=task.task_id,
            lease_s=self._lease_s,
            draining=self.draining,
            clock=self._clock,
            poll_s=self._timings.weights_poll_s,
        )

    async def _run(self, delivery: Delivery, task: Task, occupancy: TaskOccupancy) -> None:
        began = self._clock()
        occupancy.begin()
        try:
            trajectories = await self._runner.run(task, partial(occupancy.episode_ended, group_size=task.group_size))
            await self._publish(trajectories)
        except (PayloadTooLarge, WireError, StoreUnauthorized, StoreRefused) as error:
            # The same prompt would bring the same again: not worth another attempt.
            failure = EpisodeFailed(_refusal_kind(error), str(error))
            await self._give_up(delivery, task, failure, attempts=await self._hand_backs.attempts(delivery))
        except TaskRefused as refusal:
            await self._give_up(delivery, task, refusal, attempts=await self._hand_backs.attempts(delivery))
        except EpisodeFailed as failed:
            await self._failed(delivery, task, failed)
        else:
            # Acknowledged only when every trajectory is stored; a crash before this line repeats the group, and the
            # copies of what is there already are of another run, and too late.
            await delivery.ack_confirmed(deadline_s=self._timings.ack_deadline_s)
            self.completed += sum(isinstance(one.outcome, Scored) and one.part == 0 for one in trajectories)
            self._metrics.completed()
            self._freshness.group_took(self._clock() - began)

    async def _failed(self, delivery: Delivery, task: Task, failure: EpisodeFailed) -> None:
        """Another attempt, as long as there are any. Hand-backs are looked up only when it may be the last."""
        attempts = delivery.attempt
        if attempts >= self._max_deliveries:
            attempts = await self._hand_backs.attempts(delivery)
        if attempts >= self._max_deliveries:
            await self._give_up(delivery, task, failure, attempts=attempts)
        else:
            self._note(failure, task=task.task_id, attempt=attempts)
            await delivery.nak(delay_s=self._timings.retry_delay_s)
            self._metrics.retried()

    async def _give_up(self, delivery: Delivery, task: Task, failure: EpisodeFailed, *, attempts: int) -> None:
        """Quarantine comes first: when the failures are published, the reason is already there."""
        self._note(failure, task=task.task_id, attempt=attempts)
        await self._quarantine.admit(task, failure, attempts=attempts)
        await self._publish(self._runner.failed(task, failure))
        await delivery.ack_confirmed(deadline_s=self._timings.ack_deadline_s)
        self._metrics.quarantined()

    async def _refuse(self, delivery: Delivery, failure: EpisodeFailed) -> None:
        """A message that is no task has no group to publish failures for."""
        self._note(failure, task=f"sequence-{delivery.sequence}", attempt=delivery.attempt)
        await self._quarantine.admit_unreadable(delivery, failure)
        await delivery.term(reason=failure.text)
        self._metrics.quarantined()

    def _note(self, failure: EpisodeFailed, *, task: str, attempt: int) -> None:
        self._metrics.failure(self._failures.add(failure.kind))
        _log.warning(
            "group_failed", task=task, attempt=attempt, error=failure.kind, why=failure.text, where=failure.where
        )

    async def _publish(self, trajectories: Sequence[Trajectory]) -> None:
        """Through a window of the group's own: one that has failed takes nothing more, and fails only this group. A row
        that no message can carry is put into object storage first, and its claim goes at once: one that came later
        than the rows after it might find its object collected.
        """
        frames = [(trajectory, encode(trajectory), headers(trajectory)) for trajectory in trajectories]
        await when_there_is_room(
            lambda: self._publish_once(frames),
            backoff=self._timings.publish_backoff,
            on_refused=self._metrics.not_stored,
        )
        self._metrics.published(trajectories)

    async def _publish_once(self, frames: Sequence[tuple[Trajectory, bytes, Headers]]) -> None:
        async with WindowedPublisher(
            self._bus,
            max_messages=_WINDOW_MESSAGES,
            max_bytes=_WINDOW_BYTES,
            deadline_s=self._timings.publish_deadline_s,
        ) as publisher:
            for trajectory, frame, header in frames:
                subject = self._topology.trajectory_subject(trajectory.policy)
                if len(frame) + encoded_size(header) > self._bus.max_payload:
                    frame = encode(await self._claims.deposit(trajectory, frame))
                    self._metrics.deposited()
                await publisher.publish(subject, frame, message_id=trajectory.message_id, headers=header)


def _refusal_kind(error: Exception) -> str:
    if isinstance(error, StoreUnauthorized | StoreRefused):
        return "row-not-stored"
    return "trajectory-too-large" if isinstance(error, PayloadTooLarge | OversizeError) else "trajectory-refused"
