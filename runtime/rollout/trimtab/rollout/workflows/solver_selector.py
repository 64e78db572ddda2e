"""A solver writes several candidates, and a selector chooses the one to hand in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.workflows.answer_checks import AnswerKey
from trimtab.rollout.workflows.candidates import at_least, drawn, listed, problem_of
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.score import Score
from trimtab.rollout.workflows.solver_verifier import check_placeholders, filled
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team

SOLVER_TEXT = "{problem}\nWrite a Python program that solves it, within one block fenced by ```.\n"
SELECTOR_TEXT = "Problem:\n{problem}\n\n{candidates}\nCompare the candidates. End with the number of the best one.\n"
CANDIDATE_TEXT = "Candidate {number}:\n{candidate}\n\n"


class SolverSelector:
    """The roles `solver` and `selector`. Each candidate is rewarded by its own score.

    The selector's reward is the score of its choice. Where all candidates score the same there is no choice to learn
    from, and it is not scored, unless it chose none: that is 0. The choice is the last number that it says, or the last
    match of `choice_pattern`.
    """

    roles = ("solver", "selector")

    def __init__(
        self,
        *,
        candidates: int = 2,
        prompt_column: str = "prompt",
        answer_column: str = "tests",
        check: str = "tests",
        check_args: Mapping[str, Any] | None = None,
        answer_pattern: str | None = None,
        choice_pattern: str = r"[0-9]+",
        max_tokens: int | None = None,
        solver_text: str = SOLVER_TEXT,
        selector_text: str = SELECTOR_TEXT,
        candidate_text: str = CANDIDATE_TEXT,
        solver_chat: Mapping[str, Any] | None = None,
        selector_chat: Mapping[str, Any] | None = None,
    ) -> None:
        self._candidates = at_least(candidates, 2, name="candidates")
        self._prompt_column = prompt_column
        self._key = AnswerKey(check=check, column=answer_column, pattern=answer_pattern, arguments=check_args)
        self._choice = re.compile(choice_pattern, re.DOTALL)
        self._max_tokens = max_tokens
        self._solver_text = check_placeholders(solver_text, name="solver_text", placeholders=("problem",))
        self._selector_text = check_placeholders(
            selector_text, name="selector_text", placeholders=("problem", "candidates")
        )
        self._candidate_text = check_placeholders(candidate_text, name="candidate_text", placeholders=("candidate",))
        self._solver_chat = ChatSettings.of(solver_chat, name="solver_chat")
        self._selector_chat = ChatSettings.of(selector_chat, name="selector_chat")

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        problem = problem_of(task, column=self._prompt_column)
        candidates = await drawn(
            team,
            "solver",
            filled(self._solver_text, problem=problem),
            count=self._candidates,
            max_tokens=self._max_tokens,
            settings=self._solver_chat,
        )
        selector = team.begin("selector", max_tokens=self._max_tokens, settings=self._selector_chat)
        shown = listed(candidates, text=self._candidate_text)
        selector.hear(filled(self._selector_text, problem=problem, candidates=shown))
        async with asyncio.TaskGroup() as both:
            scoring = [both.create_task(self._key.score(said, task, team)) for _, said in candidates]
            choosing = both.create_task(selector.speak())
        scores = [one.result() for one in scoring]
        chosen = self._chosen(choosing.result(), scores)
        selected = 0.0 if chosen is None else chosen.value
        scored = [
            ScoredConversation(conversation, reward=score.value, reward_parts={**score.parts, "selected": selected})
            for (conversation, _), score in zip(candidates, scores, strict=True)
        ]
        if chosen is None or len({score.value for score in scores}) > 1:
            best = max(score.value for score in scores)
            scored.append(ScoredConversation(selector, reward=selected, reward_parts={"best": best}))
        return Episode(tuple(scored))

    def _chosen(self, said: str, scores: Sequence[Score]) -> Score | None:
        """None if it says no number of a candidate."""
        matches = list(self._choice.finditer(said))
        if not matches:
            return None
        number = matches[-1].group(1 if self._choice.groups else 0)
        if not re.fullmatch(r"[0-9]{1,4}", number) or not 1 <= int(number) <= len(scores):
            return None
        return scores[int(number) - 1]
