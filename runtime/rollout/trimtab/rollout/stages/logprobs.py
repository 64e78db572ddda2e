"""Log-probabilities of every trained token under a policy: a reference, a teacher, newer weights of the sampler."""

from __future__ import annotations

import asyncio

import numpy as np

from trimtab.rollout.policy.scorer import PolicyScorer, ScoredTokens
from trimtab.rollout.stages.computed import Computed, versions_of
from trimtab.rollout.stages.group import GroupRow, StageGroup
from trimtab.rollout.worker.failures import TaskRefused


class Logprobs:
    """At the temperature that the policy itself is sampled with."""

    def __init__(self, scorer: PolicyScorer, *, temperature: float, learns: bool) -> None:
        self._scorer = scorer
        self._temperature = temperature
        self._learns = learns

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        async with asyncio.TaskGroup() as asked:
            answers = [asked.create_task(self._row(row, group, deadline_s=deadline_s)) for row in group.rows]
        scored = [answer.result() for answer in answers]
        numbers = tuple(
            np.asarray(one.numbers, dtype=np.float32)[row.mask[1:]] for row, one in zip(group.rows, scored, strict=True)
        )
        return Computed(numbers=numbers, versions=versions_of(scored, learns=self._learns))

    async def _row(self, row: GroupRow, group: StageGroup, *, deadline_s: float) -> ScoredTokens:
        if row.mask[0]:
            raise TaskRefused(f"the first token of {row.trajectory_id} is trained: nothing stands before it")
        return await self._scorer.logprobs(
            row.trajectory.token_ids.tolist(),
            temperature=self._temperature,
            request_id=f"{group.task.stage}.{row.trajectory_id}",
            deadline_s=deadline_s,
        )
