"""Rewards of rows: by a reward model, whose value head speaks at the end of a row, or by code of one's own."""

from __future__ import annotations

import numpy as np

from trimtab.rollout.policy.scorer import PolicyScorer
from trimtab.rollout.stages.computed import Computed, finite_number, versions_of
from trimtab.rollout.stages.group import StageGroup
from trimtab.rollout.stages.plugin import PluginCalls
from trimtab.rollout.stages.values import said_of_rows


class ModelReward:
    """What the value head says of the whole row."""

    def __init__(self, scorer: PolicyScorer, *, learns: bool) -> None:
        self._scorer = scorer
        self._learns = learns

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        said = await said_of_rows(self._scorer, group, deadline_s=deadline_s)
        return _rewards([one.numbers[-1] for one in said], versions=versions_of(said, learns=self._learns))


class OwnReward:
    """What a plugin says."""

    def __init__(self, plugin: PluginCalls) -> None:
        self._plugin = plugin

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        said = await self._plugin.said(group, deadline_s=deadline_s)
        ids = [row.trajectory_id for row in group.rows]
        return _rewards([finite_number(one, what=f"the reward of {row}") for row, one in zip(ids, said, strict=True)])


def _rewards(rewards: list[float], *, versions: tuple[int, int] | None = None) -> Computed:
    numbers = tuple(np.array([reward], dtype=np.float32) for reward in rewards)
    return Computed(numbers=numbers, rewards=tuple(rewards), versions=versions)
