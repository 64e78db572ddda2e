"""A solver answers, a verifier judges with reasons, and the solver tries again with the reasons before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trimtab.rollout.workflows.answer_checks import AnswerKey
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.score import Score
from trimtab.rollout.workflows.team import Assignment, Episode, PromptUnusable, ScoredConversation, Team

SOLVER_TEXT = "{problem}\nReason step by step, then give the final answer within \\boxed{}.\n"
VERIFIER_TEXT = (
    "Problem:\n{problem}\n\nProposed solution:\n{solution}\n\n"
    "Check the solution step by step and say what is wrong with it. End with ACCEPT or REJECT.\n"
)
RETRY_TEXT = "\nA verifier rejected this solution:\n{feedback}\n\nTry again.\n"
NEXT_TEXT = "\nThe next proposed solution:\n{solution}\n\nCheck it in the same way. End with ACCEPT or REJECT.\n"


class SolverVerifier:
    """The roles `solver` and `verifier`, of one policy or of two. Each has one conversation, however many attempts.

    The solver is rewarded for its last attempt, by the answer that is known. The verifier's reward is the share of its
    verdicts that were right; one that cannot be read is wrong, and counts as a rejection. Which of the words is the
    verdict is decided by the last of them.
    """

    roles = ("solver", "verifier")

    def __init__(
        self,
        *,
        retries: int = 1,
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        check: str = "math",
        check_args: Mapping[str, Any] | None = None,
        answer_pattern: str | None = None,
        max_tokens: int | None = None,
        solver_text: str = SOLVER_TEXT,
        verifier_text: str = VERIFIER_TEXT,
        retry_text: str = RETRY_TEXT,
        next_text: str = NEXT_TEXT,
        accept: str = "ACCEPT",
        reject: str = "REJECT",
        solver_chat: Mapping[str, Any] | None = None,
        verifier_chat: Mapping[str, Any] | None = None,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries is {retries}: at least 0")
        self._retries = retries
        self._prompt_column = prompt_column
        self._key = AnswerKey(check=check, column=answer_column, pattern=answer_pattern, arguments=check_args)
        self._max_tokens = max_tokens
        self._solver_text = check_placeholders(solver_text, name="solver_text", placeholders=("problem",))
        self._verifier_text = check_placeholders(
            verifier_text, name="verifier_text", placeholders=("problem", "solution")
        )
        self._retry_text = check_placeholders(retry_text, name="retry_text", placeholders=("feedback",))
        self._next_text = check_placeholders(next_text, name="next_text", placeholders=("solution",))
        self._solver_chat = ChatSettings.of(solver_chat, name="solver_chat")
        self._verifier_chat = ChatSettings.of(verifier_chat, name="verifier_chat")
        self._accept = accept
        self._verdict = re.compile(f"{re.escape(accept)}|{re.escape(reject)}")

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        problem = task.column(self._prompt_column)
        if not isinstance(problem, str):
            raise PromptUnusable(f"column {self._prompt_column!r} is a {type(problem).__name__}: text is needed")
        solver = team.begin("solver", max_tokens=self._max_tokens, settings=self._solver_chat)
        verifier = team.begin("verifier", max_tokens=self._max_tokens, settings=self._verifier_chat)
        solver.hear(filled(self._solver_text, problem=problem))
        scores: list[Score] = []
        right: list[bool] = []
        while True:
            solution = await solver.speak()
            scores.append(await self._key.score(solution, task, team))
            text = self._next_text if verifier.turns else self._verifier_text
            verifier.hear(filled(text, problem=problem, solution=solution))
            if verifier.turns and verifier.over:
                break
            judgement = await verifier.speak()
            verdict = self._last_verdict(judgement)
            right.append(verdict is not None and verdict == (scores[-1].value == 1.0))
            if verdict or len(scores) > self._retries:
                break
            solver.hear(filled(self._retry_text, feedback=judgement))
            if solver.over:
                break
        return Episode(
            (
                ScoredConversation(solver, reward=scores[-1].value, reward_parts=scores[-1].parts),
                ScoredConversation(verifier, reward=sum(right) / len(right)),
            )
        )

    def _last_verdict(self, judgement: str) -> bool | None:
        """Whether it accepts; None if it says neither."""
        said = self._verdict.findall(judgement)
        return said[-1] == self._accept if said else None


def check_placeholders(text: str, *, name: str, placeholders: tuple[str, ...]) -> str:
    """The text, if it has all the placeholders it needs. They are filled without `str.format`, which would stumble over
    LaTeX and fill what it has filled.
    """
    missing = [placeholder for placeholder in placeholders if f"{{{placeholder}}}" not in text]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(f'{{{placeholder}}}' for placeholder in missing)}")
    return text


def filled(text: str, **placeholders: str) -> str:
    """Each `{placeholder}` replaced by its words, in one pass: braces within the words stay as they are."""
    pattern = "|".join(map(re.escape, placeholders))
    return re.sub(rf"\{{({pattern})\}}", lambda match: placeholders[match.group(1)], text)
