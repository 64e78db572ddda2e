"""Workflows that do not do as they should."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.support.polling import within
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class Faulty:
    """Fails the first attempts at every episode, in the way it is told; then does as single-turn does."""

    def __init__(self, *, failures: int, reward: float | None = None) -> None:
        self._failures = failures
        self._reward = reward
        self._attempts: Counter[str] = Counter()

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        self._attempts[assignment.request_id] += 1
        if self._attempts[assignment.request_id] > self._failures:
            return await SingleTurn().run(assignment, team)
        if self._reward is None:
            raise RuntimeError("tool crashed")
        conversation = team.begin()
        conversation.hear("ab")
        await conversation.speak()
        return Episode((ScoredConversation(conversation, reward=self._reward),))

    @property
    def most_attempts(self) -> int:
        return max(self._attempts.values())


class Held:
    """Begins every episode and finishes none until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun = 0

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        self.begun += 1
        await within(self.open.wait(), 60.0)
        return await SingleTurn().run(assignment, team)


class Allergic:
    """Raises whenever it is given one prompt; does as single-turn does with all others."""

    def __init__(self, *, prompt: str, error: str) -> None:
        self._prompt = prompt
        self._error = error

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        if assignment.prompt["prompt"] == self._prompt:
            raise RuntimeError(self._error)
        return await SingleTurn().run(assignment, team)
