"""Solver and verifier with tools that take their time, as in agentic work: most answer soon, some do not."""

from __future__ import annotations

import asyncio
import random

from judged_answer import JudgedAnswer

from trimtab.rollout.workflows.team import Assignment, Episode, Team


class JudgedAnswerWithTools:
    """A tool is called before the solver speaks and another checks at the end. Their times are log-normal and follow
    from the episode's seed: the same tasks wait for the same tools.
    """

    roles = JudgedAnswer.roles

    def __init__(self, *, answers: str, median_s: float, sigma: float, longest_s: float) -> None:
        self._judged_answer = JudgedAnswer(answers=answers)
        self._median_s, self._sigma, self._longest_s = median_s, sigma, longest_s

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        chance = random.Random(f"tools {task.seed}")
        await asyncio.sleep(self._tool_s(chance))
        episode: Episode = await self._judged_answer.run(task, team)
        await asyncio.sleep(self._tool_s(chance))
        return episode

    def _tool_s(self, chance: random.Random) -> float:
        return min(self._longest_s, self._median_s * chance.lognormvariate(0.0, self._sigma))
