"""Rewards of each trained turn: by a reward model, which speaks at the end of each, or by code of one's own."""

from __future__ import annotations

import numpy as np

from trimtab.rollout.policy.scorer import PolicyScorer
from trimtab.rollout.stages.computed import Computed, Numbers, finite_numbers, versions_of
from trimtab.rollout.stages.group import StageGroup
from trimtab.rollout.stages.plugin import PluginCalls
from trimtab.rollout.stages.values import said_of_rows


class ModelTurnRewards:
    """What the value head says of all up to the end of each turn."""

    def __init__(self, scorer: PolicyScorer, *, learns: bool) -> None:
        self._scorer = scorer
        self._learns = learns

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        said = await said_of_rows(self._scorer, group, deadline_s=deadline_s)
        numbers = [
            np.asarray(one.numbers, dtype=np.float32)[row.turn_ends] for row, one in zip(group.rows, said, strict=True)
        ]
        return _turn_rewards(numbers, versions=versions_of(said, learns=self._learns))


class OwnTurnRewards:
    """What a plugin says."""

    def __init__(self, plugin: PluginCalls) -> None:
        self._plugin = plugin

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        said = await self._plugin.said(group, deadline_s=deadline_s)
        return _turn_rewards(
            [
                finite_numbers(
                    one, count=len(row.trajectory.turn_rewards), what=f"the turn rewards of {row.trajectory_id}"
                )
                for row, one in zip(group.rows, said, strict=True)
            ]
        )


def _turn_rewards(numbers: list[Numbers], *, versions: tuple[int, int] | None = None) -> Computed:
    told = tuple(tuple(map(float, own)) for own in numbers)
    return Computed(numbers=tuple(numbers), turn_rewards=told, versions=versions)
