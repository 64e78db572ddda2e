"""Brings the work queues in line with the books, when a process begins, whenever samples were given up, and after each
outage of the bus.

A task that the books have given up may ask for weights that its trainer has lost: workers would wait for them with all
their room, and never come to what is wanted now. A server that has lost its power may take messages for delivered that
nobody has: no worker would be given them. Or it may have lost tasks that it had acknowledged: nobody would bring them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from trimtab.dataflow.issuer import QUEUE
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.evaluation_books import parse_evaluation_task
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.task_ids import parse_task_id
from trimtab.dataflow.ledger.trainer_books import is_out_of_reach
from trimtab.dataflow.work_queue import Queued, queued
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import delete_message
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.task import Task

_log = structlog.get_logger(__name__)
_DEADLINE_S = 30.0
_IDLE_S = 1.0
_AT_ONCE = 16
_NOT_DELETED = 10057
_LOOKS = 3
"""A message that is settled while we look has left the consumer's numbers and not yet the stream's,"""
_SETTLING_S = 0.2
"""and one that was withdrawn just now the stream's and not yet the consumer's."""
_ARRIVING_S = 5.0
"""A task leaves the queue when its rows are stored; until they are read, the books wait for it."""
_BACKOFF = FullJitter(base_s=1.0, cap_s=15.0)

M = TypeVar("M", Task, StageTask)


class TasksLost(RuntimeError):
    """The queue has lost tasks that it had acknowledged: recovery says what becomes of them."""


@dataclass(frozen=True, kw_only=True)
class _Queue(Generic[M]):
    """One consumer's part of a stream."""

    stream: str
    subject: str
    consumer: str
    kind: type[M]
    is_over: Callable[[M], bool]
    """Whether the books want nothing of it any more."""
    sent: Callable[[], Set[str]]
    """Ids of tasks that it has acknowledged, and that the books wait for."""


class QueueMetrics:
    """Of a job's dataflow."""

    def __init__(self, metrics: Metrics) -> None:
        self.reconciled = metrics.counter(
            "work_queues_reconciled", "Times that the work queues were brought in line with the books"
        )


class QueueReconciler:
    """`incarnation` makes the ids of what is sent again new ones: the queue would drop it by its own. `sent` says which
    tasks of rollout pools the queue has acknowledged and the books wait for, `asked` the same of a stage."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        books: Bookkeeper,
        *,
        metrics: QueueMetrics,
        incarnation: str,
        sent: Callable[[], Set[str]],
        asked: Callable[[str], Set[str]],
    ) -> None:
        self._bus = bus
        self._books = books
        self._incarnation = incarnation
        self._metrics = metrics
        ledger = books.ledger
        tasks = _Queue(
            stream=topology.tasks.name,
            subject=topology.task_subject(QUEUE),
            consumer=TASK_CONSUMER,
            kind=Task,
            is_over=lambda task: is_over(ledger, task.task_id),
            sent=sent,
        )
        stages = (
            _Queue(
                stream=topology.stage_tasks.name,
                subject=topology.stage_subject(stage),
                consumer=topology.stage_consumer_name(stage),
                kind=StageTask,
                is_over=lambda task: not ledger.waits_for_stages(task.policy, task.group_id),
                sent=partial(asked, stage),
            )
            for stage in topology.stages
        )
        self._queues: tuple[_Queue[Any], ...] = (tasks, *stages)

    async def run(self) -> None:
        """Until cancelled. Raises TasksLost where that is found after an outage."""
        failures = 0
        # Recovery has looked for what is lost, over the process's first connection.
        whole_in = 0
        while True:
            anchored, epoch = self._books.ledger.anchored_anew, self._bus.epoch
            try:
                missing = await self._reconcile_all()
                if missing and epoch != whole_in:
                    await asyncio.sleep(_ARRIVING_S)
                    missing &= await self._reconcile_all()
            except BusError as error:
                _log.warning("queue_not_reconciled", error=str(error))
                await asyncio.sleep(_BACKOFF.delay_s(failures))
                failures += 1
                continue
            if missing and epoch != whole_in:
                raise TasksLost(f"{len(missing)} tasks that were acknowledged are lost, {min(missing)} for one")
            failures, whole_in = 0, epoch
            self._metrics.reconciled.inc()
            while (self._books.ledger.anchored_anew, self._bus.epoch) == (anchored, epoch):
                await self._books.changed(timeout_s=_IDLE_S)

    async def _reconcile_all(self) -> set[str]:
        """Ids of tasks that were sent, and are neither queued nor at their end."""
        return {task_id for queue in self._queues for task_id in await self._reconcile(queue)}

    async def _reconcile(self, queue: _Queue[M]) -> Set[str]:
        sent = queue.sent()
        found = await queued(self._bus, queue.stream, queue.kind, subject=queue.subject)
        over = [one for one in found if queue.is_over(one.message)]
        await self._withdraw(queue, over)
        until = await self._forgotten_until(queue)
        forgotten = [one for one in found if one.sequence <= until and not queue.is_over(one.message)]
        for one in forgotten:
            # Its first copy goes last: whatever happens in between, there is one.
            await publish(
                self._bus,
                queue.subject,
                encode(one.message),
                message_id=f"{one.message.task_id}-{self._incarnation}",
                deadline_s=_DEADLINE_S,
            )
        await self._withdraw(queue, forgotten)
        if over or forgotten:
            _log.info("queue_reconciled", stream=queue.stream, withdrawn=len(over), sent_again=len(forgotten))
        return sent - {one.message.task_id for one in found}

    async def _withdraw(self, queue: _Queue[M], messages: Sequence[Queued[M]]) -> None:
        for start in range(0, len(messages), _AT_ONCE):
            some = messages[start : start + _AT_ONCE]
            await asyncio.gather(*(self._delete(queue.stream, one.sequence) for one in some))

    async def _delete(self, stream: str, sequence: int) -> None:
        try:
            await delete_message(self._bus, stream, sequence, deadline_s=_DEADLINE_S)
        except BusNotFound:
            return  # a worker has settled it
        except BusRefused as refused:
            # Also where a worker is just settling it, or its file cannot be read: consumers pass over such a message.
            if refused.err_code != _NOT_DELETED:
                raise

    async def _forgotten_until(self, queue: _Queue[M]) -> int:
        """Up to which number the consumer takes all messages for delivered, though it waits for fewer than there are; 0
        where it knows of every message. Those that it does wait for cannot be told from the others.
        """
        for _ in range(_LOOKS):
            await asyncio.sleep(_SETTLING_S)
            try:
                told = await api_call(
                    self._bus, f"CONSUMER.INFO.{queue.stream}.{queue.consumer}", deadline_s=_DEADLINE_S
                )
            except BusNotFound:
                return 0  # no worker has begun yet
            body = {"subjects_filter": queue.subject}
            state = (await api_call(self._bus, f"STREAM.INFO.{queue.stream}", body, deadline_s=_DEADLINE_S))["state"]
            present = int((state.get("subjects") or {}).get(queue.subject, 0))
            if present <= int(told["num_pending"]) + int(told["num_ack_pending"]):
                return 0
        return int(told["delivered"]["stream_seq"])


def is_over(ledger: Ledger, task_id: str) -> bool:
    """Whether all that a task was issued for has come, or was given up."""
    number = parse_task_id(task_id)
    if number is not None:
        streams = [stream for stream in ledger.streams.values() if stream.groups_per_task]
        return all(stream.ended.has_all(number, roles=stream.groups_per_task) for stream in streams)
    place = parse_evaluation_task(task_id)
    if place is None:
        return False
    number, benchmark, prompt = place
    running = ledger.evaluation.running
    if running is None or number != running.number:
        return number < ledger.evaluation.ended
    return is_out_of_reach(running.versions, ledger.trainers) or ledger.evaluation.is_done(benchmark, prompt)
