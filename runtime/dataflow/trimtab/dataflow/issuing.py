"""Puts prompt groups on the work queue as fast as admission allows, and never faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trimtab.api.job import RLJob
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import TasksIssued
from trimtab.dataflow.ledger.task_ids import task_id
from trimtab.dataflow.prompts import PromptOrder
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.task import Task

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
            # The newest tasks may not have gone out before a crash: earlier ones had, or these would not be recorded.
            # A second copy does no harm: the queue drops it by its id, and if it is too late for that, the samples it
            # makes are known by theirs.
            await self._publish(publisher, self._books.ledger.unseen(self._books.ledger.newest_tasks))
            while True:
                record = await self._books.record(self._decide)
                if isinstance(record, TasksIssued):
                    await self._publish(publisher, range(record.first, record.first + record.count))
                else:
                    await self._books.changed(timeout_s=_IDLE_S)

    def _decide(self, ledger: Ledger) -> TasksIssued | None:
        count = min(ledger.capacity_tasks(), _MAX_AT_ONCE)
        if self._prompts.total is not None:
            count = min(count, self._prompts.total - ledger.issued)
        return TasksIssued(first=ledger.issued, count=count) if count > 0 else None

    async def _publish(self, publisher: WindowedPublisher, numbers: Iterable[int]) -> None:
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
