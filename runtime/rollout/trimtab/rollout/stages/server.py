"""Serves one delivery of a stage's task to its end: computed and stored, handed back, or given up and quarantined."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from trimtab.api.stage import Stage
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, PayloadTooLarge
from trimtab.fabric.objects.errors import StoreRefused, StoreTimeout, StoreUnauthorized, StoreUnavailable
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.stage import StageTask
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.stages.columns import ColumnStore
from trimtab.rollout.stages.computed import Computation, Computed
from trimtab.rollout.stages.group import GroupGone, GroupReader
from trimtab.rollout.stages.metrics import StageWorkMetrics
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, HandBacks, WorkerTimings
from trimtab.rollout.worker.failures import EpisodeFailed, FailureTally, TaskRefused, failure_of
from trimtab.rollout.worker.held_delivery import keep, weights_arrived
from trimtab.rollout.worker.metrics import HandBack
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.workflows.errors import first_cause
from trimtab.rollout.workflows.source_location import WorkflowSource

_log = structlog.get_logger(__name__)
_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """One stage, and what computes it. `source` is where its plugin's code lies, if it has one."""

    stage: Stage
    computation: Computation
    source: WorkflowSource


class StageServer:
    """Settles every delivery it is given, whatever happens. As with tasks of rollouts, a failure is tried again up to
    `max_deliveries` times, hand-backs do not count, and `spare_deliveries` more are for workers that died.
    """

    def __init__(
        self,
        work: StageWork,
        reader: GroupReader,
        columns: ColumnStore,
        quarantine: Quarantine,
        hand_backs: HandBacks,
        freshness: Freshness,
        metrics: StageWorkMetrics,
        *,
        lease_s: float,
        max_deliveries: int,
        spare_deliveries: int = 20,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        timings: WorkerTimings = WORKER_TIMINGS,
    ) -> None:
        self._work = work
        self._reader = reader
        self._columns = columns
        self._quarantine = quarantine
        self._hand_backs = hand_backs
        self._freshness = freshness
        self._metrics = metrics
        self._lease_s = lease_s
        self._max_deliveries = max_deliveries
        self._spare_deliveries = spare_deliveries
        self._clock = clock
        self._wall_clock = wall_clock
        self._timings = timings
        self.draining = asyncio.Event()
        """Set when the worker leaves: tasks that wait for weights are handed back at once."""
        self._failures = FailureTally()
        metrics.begin(self.stage)

    @property
    def stage(self) -> str:
        return self._work.stage.name

    @property
    def source(self) -> WorkflowSource:
        return self._work.source

    @property
    def failures(self) -> Counter[str]:
        """Attempts at a group that failed, by kind."""
        return self._failures.counts

    async def serve(self, delivery: Delivery) -> None:
        heartbeat = asyncio.create_task(keep(delivery, lease_s=self._lease_s))
        try:
            try:
                await self._settle(delivery)
            except (BusError, StoreUnavailable, StoreTimeout) as error:
                _log.warning("column_not_stored", stage=self.stage, sequence=delivery.sequence, error=str(error))
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
        self._metrics.handed_back(self.stage, reason)
        await self._hand_backs.add(delivery)
        with contextlib.suppress(BusError):
            await delivery.nak(delay_s=delay_s)

    async def _settle(self, delivery: Delivery) -> None:
        try:
            task = decode(delivery.payload, StageTask)
        except WireError as error:
            await self._refuse(delivery, EpisodeFailed("task-unreadable", str(error)))
            return
        if task.stage != self.stage:
            stranger = f"a task of stage {task.stage} in the queue of {self.stage}"
            await self._refuse(delivery, EpisodeFailed("task-unreadable", stranger))
            return
        most = self._max_deliveries + self._spare_deliveries
        if delivery.attempt > most and (attempts := await self._hand_backs.attempts(delivery)) > most:
            often = EpisodeFailed("delivered-too-often", f"given out {attempts} times and never finished")
            await self._give_up(delivery, task, often, attempts=attempts)
        elif await weights_arrived(
            self._freshness,
            task.minimum_versions,
            task_id=task.task_id,
            lease_s=self._lease_s,
            draining=self.draining,
            clock=self._clock,
            poll_s=self._timings.weights_poll_s,
        ):
            await self._run(delivery, task)
        else:
            await self.hand_back(delivery, HandBack.WEIGHTS, delay_s=self._timings.retry_delay_s)

    async def _run(self, delivery: Delivery, task: StageTask) -> None:
        began, started_at = self._clock(), self._wall_clock()
        try:
            computed = await self._computed(task)
            await self._columns.put(task, computed, started_at=started_at)
        except (PayloadTooLarge, WireError, StoreUnauthorized, StoreRefused) as error:
            # The same rows would bring the same again: not worth another attempt.
            failure = EpisodeFailed("column-refused", str(error))
            await self._give_up(delivery, task, failure, attempts=await self._hand_backs.attempts(delivery))
        except GroupGone as gone:
            _log.info("stage_task_obsolete", stage=self.stage, task=task.task_id, why=str(gone))
            await delivery.ack_confirmed(deadline_s=self._timings.ack_deadline_s)
            self._metrics.obsolete(self.stage)
        except TaskRefused as refusal:
            await self._give_up(delivery, task, refusal, attempts=await self._hand_backs.attempts(delivery))
        except EpisodeFailed as failed:
            await self._failed(delivery, task, failed)
        else:
            # Acknowledged only when the column is stored; a crash before this line computes it again, and the second
            # column is of another run, and too late.
            await delivery.ack_confirmed(deadline_s=self._timings.ack_deadline_s)
            self._metrics.completed(self.stage, rows=len(task.rows), seconds=self._clock() - began)

    async def _computed(self, task: StageTask) -> Computed:
        """Raises EpisodeFailed for whatever goes wrong but the bus and the store."""
        timeout_s = float(self._work.stage.timeout_seconds)
        group = await self._reader.read(task)
        try:
            # Those that are asked keep to the time, and say what they waited for; this is for what does not.
            async with asyncio.timeout(timeout_s + _PATIENCE_S):
                return await self._work.computation.compute(group, deadline_s=timeout_s)
        except TimeoutError:
            raise EpisodeFailed("stage-timeout", f"not done within timeoutSeconds, {timeout_s:g} s") from None
        except Exception as error:  # a plugin is user code: whatever it raises is a failed group, not a dead worker
            cause = first_cause(error)
            if isinstance(cause, EpisodeFailed):
                raise cause from error
            raise failure_of(error, self._work.source) from error

    async def _failed(self, delivery: Delivery, task: StageTask, failure: EpisodeFailed) -> None:
        """Another attempt, as long as there are any. Hand-backs are looked up only when it may be the last."""
        attempts = delivery.attempt
        if attempts >= self._max_deliveries:
            attempts = await self._hand_backs.attempts(delivery)
        if attempts >= self._max_deliveries:
            await self._give_up(delivery, task, failure, attempts=attempts)
        else:
            self._note(failure, task=task.task_id, attempt=attempts)
            await delivery.nak(delay_s=self._timings.retry_delay_s)
            self._metrics.retried(self.stage)

    async def _give_up(self, delivery: Delivery, task: StageTask, failure: EpisodeFailed, *, attempts: int) -> None:
        """Quarantine comes first: when the group's failure is published, the reason is already there."""
        self._note(failure, task=task.task_id, attempt=attempts)
        await self._quarantine.admit_stage(task, failure, attempts=attempts)
        await self._columns.put_failure(task, failure)
        await delivery.ack_confirmed(deadline_s=self._timings.ack_deadline_s)
        self._metrics.quarantined(self.stage)

    async def _refuse(self, delivery: Delivery, failure: EpisodeFailed) -> None:
        """A message that is no task has no group to publish a failure for."""
        self._note(failure, task=f"sequence-{delivery.sequence}", attempt=delivery.attempt)
        await self._quarantine.admit_unreadable(delivery, failure)
        await delivery.term(reason=failure.text)
        self._metrics.quarantined(self.stage)

    def _note(self, failure: EpisodeFailed, *, task: str, attempt: int) -> None:
        self._metrics.failure(self.stage, self._failures.add(failure.kind))
        _log.warning(
            "stage_failed",
            stage=self.stage,
            task=task,
            attempt=attempt,
            error=failure.kind,
            why=failure.text,
            where=failure.where,
        )
