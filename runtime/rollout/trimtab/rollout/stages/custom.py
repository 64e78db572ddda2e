"""A column of one's own: a number for each trained token, for an algorithm that knows what it means."""

from __future__ import annotations

from trimtab.rollout.stages.computed import Computed, finite_numbers
from trimtab.rollout.stages.group import StageGroup
from trimtab.rollout.stages.plugin import PluginCalls


class OwnColumn:
    """What a plugin says."""

    def __init__(self, plugin: PluginCalls) -> None:
        self._plugin = plugin

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        said = await self._plugin.said(group, deadline_s=deadline_s)
        return Computed(
            numbers=tuple(
                finite_numbers(one, count=row.trajectory.trained_tokens, what=f"the column of {row.trajectory_id}")
                for row, one in zip(group.rows, said, strict=True)
            )
        )
