"""Log-probabilities of every trained token under a policy: a reference, a teacher, newer weights of the sampler."""

from __future__ import annotations

import asyncio

import numpy as np

from trimtab.rollout.policy.scorer import PolicyScorer
from trimtab.rollout.stages.computed import Computed, Numbers, versions
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
        results = [answer.result() for answer in answers]
        found = [span for _, span in results]
        return Computed(numbers=tuple(numbers for numbers, _ in results), **versions(found, learns=self._learns))

    async def _row(self, row: GroupRow, group: StageGroup, *, deadline_s: float) -> tuple[Numbers, tuple[int, int]]:
        mask = row.mask
        if mask[0]:
            raise TaskRefused(f"the first token of {row.trajectory_id} is trained: nothing stands before it")
        scored = await self._scorer.logprobs(
            row.trajectory.token_ids.tolist(),
            temperature=self._temperature,
            request_id=f"{group.task.stage}.{row.trajectory_id}",
            deadline_s=deadline_s,
        )
        numbers = np.asarray(scored.numbers, dtype=np.float32)[mask[1:]]
        return numbers, (scored.oldest_version, scored.newest_version)
