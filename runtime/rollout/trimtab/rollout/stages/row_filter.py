"""Which rows of a group are kept, by code of one's own."""

from __future__ import annotations

import numpy as np

from trimtab.rollout.stages.computed import Computed, StageAnswerError
from trimtab.rollout.stages.group import StageGroup
from trimtab.rollout.stages.plugin import PluginCalls


class OwnFilter:
    """Says true of those that are kept."""

    def __init__(self, plugin: PluginCalls) -> None:
        self._plugin = plugin

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed:
        said = await self._plugin.said(group, deadline_s=deadline_s)
        for row, one in zip(group.rows, said, strict=True):
            # Not by truth: a filter that returns a score by mistake would keep everything.
            if not isinstance(one, bool | np.bool_):
                raise StageAnswerError(f"whether {row.trajectory_id} is kept is {type(one).__name__}, a bool is wanted")
        keep = tuple(map(bool, said))
        return Computed(numbers=tuple(np.array([kept], dtype=np.float32) for kept in keep), keep=keep)
