"""Workflows for pods under fire: some take their time, some do everything that a workflow must not do."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from typing import Any

from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class TakesItsTime:
    """Uses a tool for a moment, or for as long as the prompt says, and then answers."""

    def __init__(self) -> None:
        self._single_turn = SingleTurn()

    async def run(self, task: Assignment, team: Team) -> Episode:
        seconds = task.prompt.get("seconds")
        await asyncio.sleep(random.Random(task.seed).uniform(0.0, 0.2) if seconds is None else seconds)
        return await self._single_turn.run(task, team)


class Troubled:
    """Does what the prompt's `trouble` says; without one, it does well."""

    def __init__(self) -> None:
        self._single_turn = SingleTurn()

    async def run(self, task: Assignment, team: Team) -> Episode:
        trouble = task.prompt.get("trouble")
        if trouble is None:
            return await self._single_turn.run(task, team)
        troubled: Episode = await getattr(self, f"_{trouble}")(task, team)
        return troubled

    async def _hangs(self, task: Assignment, team: Team) -> Episode:
        await asyncio.Event().wait()
        raise AssertionError

    async def _ignores_cancellation(self, task: Assignment, team: Team) -> Episode:
        while True:
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                continue

    async def _reward_raises(self, task: Assignment, team: Team) -> Episode:
        conversation = await self._answer(team)
        return Episode((ScoredConversation(conversation, reward=1 / 0),))

    async def _reward_is_nan(self, task: Assignment, team: Team) -> Episode:
        return Episode((ScoredConversation(await self._answer(team), reward=math.nan),))

    async def _reward_is_text(self, task: Assignment, team: Team) -> Episode:
        return Episode((ScoredConversation(await self._answer(team), reward="1.0"),))  # type: ignore[arg-type]

    async def _reward_is_none(self, task: Assignment, team: Team) -> Episode:
        return Episode((ScoredConversation(await self._answer(team), reward=None),))  # type: ignore[arg-type]

    async def _returns_no_episode(self, task: Assignment, team: Team) -> Any:
        return {"reward": 1.0}

    async def _exits(self, task: Assignment, team: Team) -> Episode:
        sys.exit(0)

    async def _exits_in_a_task(self, task: Assignment, team: Team) -> Episode:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._exits(task, team))
        raise AssertionError

    async def _is_interrupted(self, task: Assignment, team: Team) -> Episode:
        raise KeyboardInterrupt

    async def _cancels_itself(self, task: Assignment, team: Team) -> Episode:
        mine = asyncio.create_task(asyncio.sleep(3600.0))
        mine.cancel()
        await mine
        raise AssertionError

    async def _runs_out_of_memory(self, task: Assignment, team: Team) -> Episode:
        raise MemoryError

    async def _blocks(self, task: Assignment, team: Team) -> Episode:
        time.sleep(4.0)  # noqa: ASYNC251 - what it is about
        return await self._single_turn.run(task, team)

    async def _answer(self, team: Team) -> Any:
        conversation = team.begin()
        conversation.hear("1,2,3>")
        await conversation.speak()
        return conversation
