"""Puts prompt groups on the work queue as fast as admission allows, and never faster."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from trimtab.api.job import RLJob
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import TasksIssued
from trimtab.dataflow.prompts import PromptOrder
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.task import Task

_log = structlog.get_logger(__name__)
_IDLE_S = 1.0
_MAX_AT_ONCE = 256
QUEUE = "rollout"


class Issuer:
    """Task number n is a function of n alone, so what may not have gone out before a crash is simply sent again."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        job: RLJob,
        prompts: PromptOrder,
        books: Bookkeeper,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._bus = bus
        self._topology = topology
        self._job = job
        self._prompts = prompts
        self._books = books
        self._clock = clock

    async def run(self) -> None:
        async with WindowedPublisher(self._bus, max_messages=256, max_bytes=16 << 20, deadline_s=60.0) as publisher:
            await self._publish(publisher, self._unfinished(self._books.ledger))
            while True:
                record = await self._books.record(self._decide)
                if isinstance(record, TasksIssued):
                    await self._publish(publisher, range(record.first, record.first + record.count))
                else:
                    await self._books.changed(timeout_s=_IDLE_S)

    def _decide(self, ledger: Ledger) -> TasksIssued | None:
        if all(books.finished for books in ledger.policies.values()):
            return None
        count = min(ledger.capacity_groups(), _MAX_AT_ONCE)
        epochs = self._job.spec.data.epochs
        if epochs is not None:
            count = min(count, epochs * self._prompts.per_epoch - ledger.issued)
        return TasksIssued(first=ledger.issued, count=count) if count > 0 else None

    def _unfinished(self, ledger: Ledger) -> list[int]:
        """Tasks that may have been lost between their record and their publication. A second copy does no harm: the
        queue drops it by its id, and if it is too late for that, the samples it makes are known by theirs.
        """
        done = {group_id for books in ledger.policies.values() for group_id in (*books.settled, *books.buffered)}
        done_tasks = {group_id.partition(".")[0] for group_id in done}
        return [number for number in range(ledger.issued) if task_id(number) not in done_tasks]

    async def _publish(self, publisher: WindowedPublisher, numbers: range | list[int]) -> None:
        for number in numbers:
            task = self._task(number)
            await publisher.publish(self._topology.task_subject(QUEUE), encode(task), message_id=task.task_id)
        await publisher.flush()

    def _task(self, number: int) -> Task:
        data = self._job.spec.data
        prompt = self._prompts.at(number)
        return Task(
            task_id=task_id(number),
            job=self._job.metadata.name,
            prompt_id=prompt.prompt_id,
            prompt=dict(prompt.content),
            group_size=data.group_size,
            seed=(data.seed << 32) + number,
            target_versions={name: books.trained_steps for name, books in self._books.ledger.policies.items()},
            created_at=self._clock(),
        )


def task_id(number: int) -> str:
    return f"t{number}"
