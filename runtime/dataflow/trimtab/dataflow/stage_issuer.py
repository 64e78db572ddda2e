"""Asks stages about groups, as soon as all is there that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.api.job import RLJob
from trimtab.dataflow.evaluation.benchmarks import HeldOut
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.errors import LedgerError
from trimtab.dataflow.ledger.evaluation_books import parse_evaluation_group
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.stage_books import Due, StageBooks
from trimtab.dataflow.ledger.stage_graph import asks_with_prompt
from trimtab.dataflow.ledger.staged_group import StagedGroup
from trimtab.dataflow.patience import patiently
from trimtab.dataflow.prompts.order import PromptOrder
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.stage import StageRow, StageTask, stage_task_id

_IDLE_S = 1.0
_MAX_AT_ONCE = 256


class StageIssuer:
    """Nothing is recorded: what is not answered after a restart is asked again under the same id. The queue drops a
    copy by that id, and if it is too late for that, the column it leads to comes second.
    """

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        job: RLJob,
        prompts: PromptOrder,
        benchmarks: Mapping[str, HeldOut],
        books: Bookkeeper,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._bus = bus
        self._topology = topology
        self._job = job
        self._prompts = prompts
        self._benchmarks = benchmarks
        self._books = books
        self._clock = clock
        self._asking: list[tuple[StageBooks, Due]] = []
        """What has been taken from the books and may not have gone out."""

    def sent(self, stage: str) -> set[str]:
        """Ids of tasks that the queue has acknowledged, and that the books wait for."""
        sending = {due for _, due in self._asking}
        asked = {due for books in self._books.ledger.asking for due in books.asked(stage)}
        return {stage_task_id(group_id, stage) for _, group_id, _ in asked - sending}

    async def run(self) -> None:
        await patiently(self._issue, self._bus, self._topology.stage_tasks)

    async def _issue(self) -> None:
        async with WindowedPublisher(self._bus, max_messages=256, max_bytes=16 << 20, deadline_s=60.0) as publisher:
            while True:
                self._asking = self._asking or self._due()
                for stages, one in self._asking:
                    await self._publish(publisher, stages, one)
                await publisher.flush()
                if not self._asking:
                    await self._books.stages_due(timeout_s=_IDLE_S)
                self._asking = []

    def _due(self) -> list[tuple[StageBooks, Due]]:
        return [(stages, one) for stages in self._books.ledger.asking for one in stages.due(_MAX_AT_ONCE)]

    async def _publish(self, publisher: WindowedPublisher, stages: StageBooks, due: Due) -> None:
        policy, group_id, stage = due
        staged = stages.staged[policy].get(group_id)
        if staged is None:
            return  # it has failed while others were published
        prompt = self._prompt(group_id, stage)
        if prompt is None:
            return
        task = self._task(staged, stage, prompt)
        # An answer that was refused does not count, and the question must not pass for one that was asked before.
        again = staged.refused.get(stage, 0)
        message_id = f"{task.task_id}.{again}" if again else task.task_id
        await publisher.publish(self._topology.stage_subject(stage), encode(task), message_id=message_id)

    def _task(self, staged: StagedGroup, stage: str, prompt: Mapping[str, Any]) -> StageTask:
        group = staged.group
        return StageTask(
            job=self._job.metadata.name,
            stage=stage,
            policy=group.policy,
            group_id=group.group_id,
            prompt_id=group.prompt_id,
            label=group.label,
            prompt=dict(prompt),
            rows=tuple(
                StageRow(sequence=row.sequence, trajectory_id=row.trajectory_id, reward=row.reward)
                for row in staged.rows_for(stage)
            ),
            columns=staged.references(stage),
            minimum_versions=self._minimum_versions(self._books.ledger, stage),
            created_at=self._clock(),
        )

    def _prompt(self, group_id: str, stage: str) -> Mapping[str, Any] | None:
        """As the stage is told it; None for a group that this process has not asked for."""
        stages = self._books.ledger.stages
        told = asks_with_prompt(stages.graph.stages[stage])
        evaluated = parse_evaluation_group(group_id)
        if evaluated is not None:
            held_out, running = self._benchmarks.get(evaluated.benchmark), self._books.ledger.evaluation.running
            if held_out is None or running is None or running.number != evaluated.number:
                return None
            if evaluated.prompt >= held_out.count:
                return None
            return held_out.prompt(evaluated.prompt).content if told else {}
        if not told:
            return {}
        place = stages.place_of(group_id)
        if place is None:
            raise LedgerError(f"the prompt of group {group_id} is not known: the job began without stages")
        return self._prompts.at(place).content

    def _minimum_versions(self, ledger: Ledger, stage: str) -> dict[str, int]:
        """Of a policy that learns: what it says of rows may be as old as the rows may be."""
        policy = ledger.stages.graph.stages[stage].policy
        if policy is None or policy not in ledger.trainers:
            return {}
        return {policy: max(0, ledger.trainers[policy].trained_steps - self._job.spec.data.max_staleness)}
