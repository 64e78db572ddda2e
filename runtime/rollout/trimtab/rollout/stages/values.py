"""What a critic expects where each trained token was about to be sampled: the value of the state before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from trimtab.rollout.policy.scorer import PolicyScorer, ScoredTokens
from trimtab.rollout.stages.computed import Computed, versions_of
from trimtab.rollout.stages.group import StageGroup
from trimtab.rollout.worker.failures import TaskRefused


async def said_of_rows(scorer: PolicyScorer, group: StageGroup, *, deadline_s: float) -> Sequence[ScoredTokens]:
    """What the value head says at each token of each row."""
    async with asyncio.TaskGroup() as asked:
        answers = [
            asked.create_task(
                scorer.values(
                    row.trajectory.token_ids.tolist(),
                    request_id=f"{group.task.stage}.{row.trajectory_id}",
                    deadline_s=deadline_s,
                )
            )
            for row in group.rows
        ]
    return [answer.result() for answer in answers]


class Values:
    """One for each trained token."""

    def __init__(self, scorer: PolicyScorer, *, learns: bool) -> None:
        self._scorer = scorer
        self._learns = learns

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        if first := next((row for row in group.rows if row.mask[0]), None):
            raise TaskRefused(f"the first token of {first.trajectory_id} is trained: nothing stands before it")
        said = await said_of_rows(self._scorer, group, deadline_s=deadline_s)
        # The head speaks of what is known up to a token; the next one is sampled there.
        numbers = tuple(
            np.asarray(one.numbers, dtype=np.float32)[:-1][row.mask[1:]]
            for row, one in zip(group.rows, said, strict=True)
        )
        return Computed(numbers=numbers, versions=versions_of(said, learns=self._learns))
