"""Puts prompt groups on the work queue as fast as admission allows, and never faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import xxhash

from trimtab.api.job import RLJob
from trimtab.dataflow.curators.contract import Curator
from trimtab.dataflow.ledger.awaited_tasks import unended, unseen
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import TasksIssued
from trimtab.dataflow.ledger.task_ids import task_id
from trimtab.dataflow.patience import patiently
from trimtab.dataflow.prompts.order import PromptOrder
from trimtab.dataflow.prompts.prompt import Prompt, label_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.task import Task

_IDLE_S = 1.0
_MAX_AT_ONCE = 256
_MAX_LOOKED_AT = 2048
"""Prompts that a curator is asked about before the books are looked at again."""
QUEUE = "rollout"


class Issuer:
    """A task is a function of its number and its prompt's place, which are recorded: what may not have gone out before
    a crash is simply sent again.
    """

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        job: RLJob,
        prompts: PromptOrder,
        curator: Curator,
        books: Bookkeeper,
        *,
        held: Callable[[], bool] = lambda: False,
        clock: Callable[[], float],
    ) -> None:
        """`held` says whether no task is to be admitted, because storage is nearly full."""
        self._held = held
        self._bus = bus
        self._topology = topology
        self._job = job
        self._prompts = prompts
        self._curator = curator
        self._books = books
        self._clock = clock
        self._admitted: dict[int, Prompt] = {}
        """By place, those of the newest tasks: a prompt is read once."""
        self._sent_until = 0
        """Of the tasks before this one the queue has acknowledged all."""

    def sent(self) -> set[str]:
        """Ids of tasks that the queue has acknowledged, and that the books wait for."""
        return {task_id(number) for number in unended(self._books.ledger) if number < self._sent_until}

    async def run(self) -> None:
        await patiently(self._issue, self._bus, self._topology.tasks)

    async def _issue(self) -> None:
        async with WindowedPublisher(self._bus, max_messages=256, max_bytes=16 << 20, deadline_s=60.0) as publisher:
            # The newest tasks may not have gone out before a crash or failure: earlier ones had, or these would not be
            # recorded. A second copy does no harm: the queue drops it by its id, and if it is too late for that, the
            # samples it makes are known by theirs.
            ledger = self._books.ledger
            unsent = set(unseen(ledger, ledger.newest_tasks))
            newest = zip(ledger.newest_tasks, ledger.newest_positions, strict=True)
            await self._publish(publisher, [task for task in newest if task[0] in unsent])
            while True:
                record = await self._books.record(self._decide)
                if isinstance(record, TasksIssued):
                    await self._publish(publisher, list(zip(ledger.newest_tasks, ledger.newest_positions, strict=True)))
                # A curator that admits nothing for now is asked again when something has changed.
                if not isinstance(record, TasksIssued) or record.count == 0:
                    await self._books.changed(timeout_s=_IDLE_S)

    def _decide(self, ledger: Ledger) -> TasksIssued | None:
        if self._held():
            return None
        leaves_out = self._job.spec.data.filter.zero_advantage == "Drop"
        capacity = ledger.capacity_tasks(self._curator.groups_needed) if leaves_out else ledger.capacity_tasks()
        count = min(capacity, _MAX_AT_ONCE)
        begin = ledger.next_position
        end = begin + _MAX_LOOKED_AT
        if self._prompts.total is not None:
            end = min(end, self._prompts.total)
        if count <= 0 or begin >= end:
            return None
        self._admitted = {}
        position = begin
        while position < end and len(self._admitted) < count:
            prompt = self._prompts.at(position)
            if self._curator.admits(prompt.prompt_id, prompt.content, draw=self._draw(position)):
                self._admitted[position] = prompt
            position += 1
        skipped = len(self._admitted) < position - begin
        return TasksIssued(
            first=ledger.issued,
            count=len(self._admitted),
            positions=tuple(self._admitted) if skipped else (),
            next_position=position,
        )

    def _draw(self, position: int) -> float:
        return xxhash.xxh3_64_intdigest(f"{self._job.spec.data.seed}/{position}".encode()) / 2**64

    async def _publish(self, publisher: WindowedPublisher, tasks: Iterable[tuple[int, int]]) -> None:
        issued = self._books.ledger.issued
        for number, position in tasks:
            task = self._task(number, position)
            await publisher.publish(self._topology.task_subject(QUEUE), encode(task), message_id=task.task_id)
        await publisher.flush()
        self._sent_until = issued

    def _task(self, number: int, position: int) -> Task:
        data = self._job.spec.data
        prompt = self._admitted.get(position) or self._prompts.at(position)
        return Task(
            task_id=task_id(number),
            job=self._job.metadata.name,
            prompt_id=prompt.prompt_id,
            prompt=dict(prompt.content),
            group_size=data.group_size,
            label=label_of(prompt, column=data.route_column),
            seed=(data.seed << 32) + number,
            target_versions={name: books.trained_steps for name, books in self._books.ledger.trainers.items()},
            minimum_versions={
                name: max(0, books.trained_steps - data.max_staleness)
                for name, books in self._books.ledger.trainers.items()
            },
            created_at=self._clock(),
        )
