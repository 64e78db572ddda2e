"""The quickstart's episode: one question, one answer, and a tool that takes its time.

Episodes of agents spend most of theirs waiting for tools, so a rollout pod is full long before its engine is busy. The
tool here only sleeps; that is what makes the trainer of this tiny model wait for samples, as it would for real ones.
"""

from __future__ import annotations

import asyncio
from typing import Any

from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Assignment, Episode, Team


class SlowTool(SingleTurn):
    """A single turn after `tool_seconds` of simulated waiting; the other arguments are those of SingleTurn."""

    def __init__(self, *, tool_seconds: float, **single_turn: Any) -> None:
        super().__init__(**single_turn)
        self._tool_seconds = tool_seconds

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        await asyncio.sleep(self._tool_seconds)
        return await super().run(task, team)
