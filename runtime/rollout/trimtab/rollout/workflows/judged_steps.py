"""A solver works in steps, and each is scored: by a judge with a rubric, or by a verifier that learns beside it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.workflows.answer_checks import AnswerKey
from trimtab.rollout.workflows.candidates import at_least, problem_of
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.errors import WorkflowError
from trimtab.rollout.workflows.solver_verifier import check_placeholders, filled
from trimtab.rollout.workflows.team import Assignment, Conversation, Episode, ScoredConversation, Team

SOLVER_TEXT = (
    "{problem}\nSolve it in small steps. Write the first step only. The last step has the final answer within "
    "\\boxed{}.\n"
)
NEXT_TEXT = "\nWrite the next step only.\n"
JUDGE_TEXT = (
    "Problem:\n{problem}\n\nSteps so far:\n{steps}\n\nNext step:\n{step}\n\nHow good is the next step? 10: right, and "
    "a help towards the answer. 5: right, and no help. 0: wrong. End with `Score: ` and the number.\n"
)
VERIFIER_TEXT = (
    "Problem:\n{problem}\n\nSteps so far:\n{steps}\n{step}\n\nWill this come to the right answer? End with YES or NO.\n"
)
_OUTCOME, _JUDGE, _VERIFIER = "outcome", "judge", "verifier"


class VerdictUnreadable(WorkflowError):
    """A judge did not say what it was asked for. What the step is worth is unknown: it is no zero."""

    kind = "verdict-unreadable"


class JudgedSteps:
    """The role `solver` takes up to `max_steps` turns, until one matches `final_pattern`. Its reward is the outcome:
    the check of all steps, a line each.

    With `scores: judge`, the frozen role `judge` reads every step with `judge_text`, and the last match of
    `score_pattern` is its score, within `score_range`. With `scores: verifier`, the role `verifier` says of every step
    whether it will come to the right answer, and is rewarded for each time that it is right. What is said of a step is
    the reward of the solver's turn, from 0 to `turn_weight` for all turns together: less than the policy's
    credit.outcomeWeight, no judge can make a wrong outcome worth more than a right one.

    A judge that cannot be read fails the episode. A verifier that cannot be read is wrong, and the solver learns
    nothing from the episode.
    """

    def __init__(
        self,
        *,
        scores: str = _OUTCOME,
        max_steps: int = 8,
        turn_weight: float = 0.4,
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        check: str = "math",
        check_args: Mapping[str, Any] | None = None,
        answer_pattern: str | None = None,
        final_pattern: str = r"\\boxed",
        score_pattern: str = r"Score:\s*([0-9]+(?:\.[0-9]+)?)",
        score_range: Sequence[float] = (0, 10),
        max_tokens: int | None = None,
        solver_text: str = SOLVER_TEXT,
        next_text: str = NEXT_TEXT,
        judge_text: str = JUDGE_TEXT,
        verifier_text: str = VERIFIER_TEXT,
        accept: str = "YES",
        reject: str = "NO",
        solver_chat: Mapping[str, Any] | None = None,
        judge_chat: Mapping[str, Any] | None = None,
        verifier_chat: Mapping[str, Any] | None = None,
    ) -> None:
        if scores not in (_OUTCOME, _JUDGE, _VERIFIER):
            raise ValueError(f"scores is {scores!r}: it is {_OUTCOME}, {_JUDGE} or {_VERIFIER}")
        if turn_weight <= 0:
            raise ValueError(f"turn_weight is {turn_weight}: it must be more than 0")
        self._scores = scores
        self.roles = ("solver",) if scores == _OUTCOME else ("solver", scores)
        self._max_steps = at_least(max_steps, 1, name="max_steps")
        self._turn_weight = turn_weight
        self._prompt_column = prompt_column
        self._key = AnswerKey(check=check, column=answer_column, pattern=answer_pattern, arguments=check_args)
        self._final = re.compile(final_pattern, re.DOTALL)
        self._score = _with_one_group(score_pattern)
        self._low, self._high = _range(score_range)
        self._max_tokens = max_tokens
        self._solver_text = check_placeholders(solver_text, name="solver_text", placeholders=("problem",))
        self._next_text = next_text
        self._judge_text = check_placeholders(judge_text, name="judge_text", placeholders=("step",))
        self._verifier_text = check_placeholders(verifier_text, name="verifier_text", placeholders=("step",))
        self._accept = accept
        self._prediction = re.compile(f"{re.escape(accept)}|{re.escape(reject)}")
        self._chats = {
            "solver": ChatSettings.of(solver_chat, name="solver_chat"),
            "judge": ChatSettings.of(judge_chat, name="judge_chat"),
            "verifier": ChatSettings.of(verifier_chat, name="verifier_chat"),
        }

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        problem = problem_of(task, column=self._prompt_column)
        self._check_roles(team)
        solver = team.begin(
            "solver", max_turns=self._max_steps, max_tokens=self._max_tokens, settings=self._chats["solver"]
        )
        steps = await self._steps(solver, problem)
        outcome = await self._key.score("\n".join(steps), task, team)
        if self._scores == _OUTCOME:
            return Episode((ScoredConversation(solver, reward=outcome.value, reward_parts=outcome.parts),))
        read = await self._read_by(team, problem, steps)
        if self._scores == _JUDGE:
            worth: list[float] | None = [self._judged(said) for _, said in read]
            beside: list[ScoredConversation] = []
        else:
            predictions = [self._predicted(said, frozen=team.role(_VERIFIER).frozen) for _, said in read]
            right = outcome.value == 1.0
            worth = None if None in predictions else [float(one is True) for one in predictions]
            beside = [
                ScoredConversation(conversation, reward=float(one is not None and one == right))
                for (conversation, _), one in zip(read, predictions, strict=True)
            ]
        return Episode((*self._solved(solver, outcome.value, outcome.parts, worth), *beside))

    async def _steps(self, solver: Conversation, problem: str) -> list[str]:
        solver.hear(filled(self._solver_text, problem=problem))
        steps = [await solver.speak()]
        while not self._final.search(steps[-1]):
            solver.hear(self._next_text)
            if solver.over:
                break
            steps.append(await solver.speak())
        return steps

    async def _read_by(self, team: Team, problem: str, steps: Sequence[str]) -> list[tuple[Conversation, str]]:
        """What the judge or the verifier says of each step, with the steps before it in view and none after it."""
        text = self._judge_text if self._scores == _JUDGE else self._verifier_text
        readers = []
        for place, step in enumerate(steps):
            reader = team.begin(self._scores, max_tokens=self._max_tokens, settings=self._chats[self._scores])
            reader.hear(filled(text, problem=problem, steps="\n".join(steps[:place]), step=step))
            readers.append(reader)
        async with asyncio.TaskGroup() as reading:
            said = [reading.create_task(reader.speak()) for reader in readers]
        return [(reader, words.result()) for reader, words in zip(readers, said, strict=True)]

    def _solved(
        self, solver: Conversation, outcome: float, parts: Mapping[str, float], worth: Sequence[float] | None
    ) -> list[ScoredConversation]:
        """Not at all, where nobody knows what its steps were worth."""
        if worth is None:
            return []
        mean = sum(worth) / len(worth)
        return [
            ScoredConversation(
                solver,
                reward=outcome,
                turn_rewards=[self._turn_weight * one / len(worth) for one in worth],
                reward_parts={**parts, "judged": mean},
            )
        ]

    def _judged(self, said: str) -> float:
        """From 0 to 1."""
        score = _number(self._score.findall(said)[-1:])
        if score is None or not self._low <= score <= self._high:
            raise VerdictUnreadable(
                f"the judge was to give a score from {self._low:g} to {self._high:g} as {self._score.pattern!r} finds "
                f"it, and said {said[-200:]!r}: see judge_text and sampling.maxTokens of its policy"
            )
        return (score - self._low) / (self._high - self._low)

    def _predicted(self, said: str, *, frozen: bool) -> bool | None:
        """None if it cannot be read. One that does not learn will not learn from that, either."""
        found = self._prediction.findall(said)
        if not found and frozen:
            raise VerdictUnreadable(
                f"the verifier was to end with {self._accept} or another word, and said {said[-200:]!r}"
            )
        return found[-1] == self._accept if found else None

    def _check_roles(self, team: Team) -> None:
        """What would leave the scores without effect."""
        if self._scores == _OUTCOME:
            return
        solver = team.role("solver")
        if not solver.credits_turns and not solver.frozen:
            raise WorkflowError(
                f"scores: {self._scores} rewards turns, and policy {solver.policy} does not learn by turns: set its "
                "algorithm.credit.type to Turn"
            )
        if self._scores == _JUDGE and not team.role(_JUDGE).frozen:
            raise WorkflowError(
                f"policy {team.role(_JUDGE).policy} of the role judge learns, and has no reward: make it frozen, or "
                "use scores: verifier"
            )


def _number(found: Sequence[str]) -> float | None:
    try:
        return float(found[0]) if found else None
    except ValueError:
        return None


def _with_one_group(pattern: str) -> re.Pattern[str]:
    compiled = re.compile(pattern, re.DOTALL)
    if compiled.groups != 1:
        raise ValueError(f"score_pattern {pattern!r} has {compiled.groups} groups: one is needed, around the number")
    return compiled


def _range(given: Sequence[float]) -> tuple[float, float]:
    if len(given) != 2 or not given[0] < given[1]:
        raise ValueError(f"score_range is {given!r:.80}: the least and the greatest score are needed, such as [0, 10]")
    return float(given[0]), float(given[1])
