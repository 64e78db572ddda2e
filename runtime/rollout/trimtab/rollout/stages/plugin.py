"""Calls code of the user's about a group, contained as workflows are: if it raises, hangs or exits, the group fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.api.stage import Stage
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.fabric.plugins import load_class
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.stage import StageTask
from trimtab.rollout.policy.sampler import derived_seed
from trimtab.rollout.stages.computed import StageAnswerError
from trimtab.rollout.stages.contract import StageContext, StageRow
from trimtab.rollout.stages.group import GroupRow, StageGroup
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.conversation import Role
from trimtab.rollout.workflows.team import Assignment, Team


def load_plugin(stage: Stage, workflow: WorkflowSpec, *, folder: Path) -> Any:
    """The stage's class, from where the workflow's code comes."""
    assert stage.plugin is not None, f"stage {stage.name} has no plugin"
    path = workflow.source.path if workflow.source is not None else None
    field = f"stages[{stage.name}].plugin"
    source = folder / path if path is not None else None
    plugin = load_class(stage.plugin.entrypoint, stage.plugin.args, field=field, folder=source)
    if not inspect.iscoroutinefunction(getattr(plugin, "compute", None)):
        given = "row" if stage.per == "Row" else "rows"
        raise JobMisconfigured(
            f"{field}.entrypoint {stage.plugin.entrypoint!r} has no `async def compute(self, {given}, context)`"
        )
    return plugin


class PluginCalls:
    """One stage's plugin, asked about a row or about all of a group at once."""

    def __init__(
        self,
        plugin: Any,
        containment: Containment,
        *,
        per: str,
        tokenizers: Mapping[str, Tokenizer],
        role: Role | None,
        seed: int,
    ) -> None:
        """`tokenizers` are of the policies whose rows it gets, `role` is the policy that it may converse with."""
        self.plugin = plugin
        self._containment = containment
        self._per = per
        self._tokenizers = tokenizers
        self._role = role
        self._seed = seed

    async def said(self, group: StageGroup, *, deadline_s: float) -> Sequence[Any]:
        """For each row, as the plugin said it."""
        rows = [self._shown(row, group.task) for row in group.rows]
        context = self._context(group.task, deadline_s=deadline_s)
        if self._per == "Group":
            answer = await self._called(rows, context, name=group.task.task_id, deadline_s=deadline_s)
            if not isinstance(answer, Sequence) or isinstance(answer, str) or len(answer) != len(rows):
                count = len(answer) if hasattr(answer, "__len__") else type(answer).__name__
                raise StageAnswerError(f"compute() returned {count} answers for {len(rows)} rows")
            return answer
        async with asyncio.TaskGroup() as calls:
            answers = [
                calls.create_task(self._called(row, context, name=row.trajectory_id, deadline_s=deadline_s))
                for row in rows
            ]
        return [one.result() for one in answers]

    async def _called(self, about: Any, context: StageContext, *, name: str, deadline_s: float) -> Any:
        work = self.plugin.compute(about, context)
        return await self._containment.run(work, name=f"stage {name}", timeout_s=deadline_s)

    def _shown(self, row: GroupRow, task: StageTask) -> StageRow:
        trajectory, mask = row.trajectory, row.mask
        tokenizer = self._tokenizers[task.policy]
        return StageRow(
            trajectory_id=row.trajectory_id,
            token_ids=trajectory.token_ids,
            mask=mask,
            text=tokenizer.decode(trajectory.token_ids.tolist()),
            answer=tokenizer.decode(trajectory.token_ids[mask].tolist()),
            reward=row.reward,
            turn_tokens=tuple(turn.tokens for turn in trajectory.turn_rewards),
            columns=row.columns,
        )

    def _context(self, task: StageTask, *, deadline_s: float) -> StageContext:
        team = None
        if self._role is not None:
            assignment = Assignment(
                prompt=task.prompt,
                seed=derived_seed(self._seed, task.task_id),
                request_id=task.task_id,
                deadline_s=deadline_s,
            )
            team = Team({self._role.name: self._role}, assignment)
        return StageContext(group_id=task.group_id, policy=task.policy, prompt=task.prompt, label=task.label, team=team)
