"""A solver writes programs, a test writer writes tests for them, and the solver tries again where one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.rollout.code.check import CodeTests
from trimtab.rollout.code.judging import Judged
from trimtab.rollout.code.program_text import program_in
from trimtab.rollout.code.tests import Calls, Tests, TestsUnreadable, read_tests
from trimtab.rollout.workflows.answer_checks import made
from trimtab.rollout.workflows.candidates import at_least, drawn, listed, problem_of
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.solver_selector import CANDIDATE_TEXT, SOLVER_TEXT
from trimtab.rollout.workflows.solver_verifier import check_placeholders, filled
from trimtab.rollout.workflows.team import Assignment, Conversation, Episode, ScoredConversation, Team

WRITER_TEXT = (
    "Problem:\n{problem}\n\n{candidates}\nWrite tests that a right program passes and a wrong one fails, within one "
    'block fenced by ```: JSON {"inputs": [...], "outputs": [...]}, or Python that asserts.\n'
)
RETRY_TEXT = "\nThis program failed a test. {feedback}\nWrite another one.\n"
_SEPARATION, _OUTCOME = "separation", "outcome"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A program, and what both kinds of tests say of it."""

    value: float
    """By the hidden ones."""
    right: bool
    written: Judged | None
    """None where the written tests cannot be run."""

    @property
    def accepted(self) -> bool:
        return self.written is not None and self.written.all_passed


class SolverTests:
    """The roles `solver` and `tester`. The solver is rewarded by the hidden tests for its last attempt.

    The test writer is rewarded for telling right from wrong: the share of pairs, of a right and of a wrong program, of
    which its tests accept the one and reject the other. The right ones are those that pass the hidden tests, among all
    attempts of the episode, and the one in `reference_column`, where there is such a column. Where all are right or all
    are wrong there is nothing to tell apart, and it is not scored, unless its tests cannot be run: that is 0. With
    `writer_reward: outcome` it has the solver's reward, as in the AstraFlow paper.
    """

    roles = ("solver", "tester")

    def __init__(
        self,
        *,
        candidates: int = 2,
        retries: int = 1,
        prompt_column: str = "prompt",
        tests_column: str = "tests",
        reference_column: str | None = None,
        check_args: Mapping[str, Any] | None = None,
        writer_reward: str = _SEPARATION,
        max_tokens: int | None = None,
        solver_text: str = SOLVER_TEXT,
        writer_text: str = WRITER_TEXT,
        candidate_text: str = CANDIDATE_TEXT,
        retry_text: str = RETRY_TEXT,
        tests_template: str = "{tests}",
        solver_chat: Mapping[str, Any] | None = None,
        writer_chat: Mapping[str, Any] | None = None,
    ) -> None:
        if writer_reward not in (_SEPARATION, _OUTCOME):
            raise ValueError(f"writer_reward is {writer_reward!r}: it is {_SEPARATION} or {_OUTCOME}")
        self._candidates = at_least(candidates, 1, name="candidates")
        self._retries = at_least(retries, 0, name="retries")
        self._prompt_column = prompt_column
        self._tests_column = tests_column
        self._reference_column = reference_column
        self._code = made(CodeTests, check_args, name="check_args")
        self._separates = writer_reward == _SEPARATION
        self._max_tokens = max_tokens
        self._solver_text = check_placeholders(solver_text, name="solver_text", placeholders=("problem",))
        self._writer_text = check_placeholders(writer_text, name="writer_text", placeholders=("problem",))
        self._candidate_text = check_placeholders(candidate_text, name="candidate_text", placeholders=("candidate",))
        self._retry_text = retry_text
        self._tests_template = check_placeholders(tests_template, name="tests_template", placeholders=("tests",))
        self._solver_chat = ChatSettings.of(solver_chat, name="solver_chat")
        self._writer_chat = ChatSettings.of(writer_chat, name="writer_chat")

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        problem = problem_of(task, column=self._prompt_column)
        hidden = self._code.hidden(task.column(self._tests_column))
        candidates = await drawn(
            team,
            "solver",
            filled(self._solver_text, problem=problem),
            count=self._candidates,
            max_tokens=self._max_tokens,
            settings=self._solver_chat,
        )
        writer = team.begin("tester", max_tokens=self._max_tokens, settings=self._writer_chat)
        shown = listed(candidates, text=self._candidate_text)
        writer.hear(filled(self._writer_text, problem=problem, candidates=shown))
        written = self._tests(await writer.speak(), hidden)
        async with asyncio.TaskGroup() as trying:
            tried = [
                trying.create_task(self._attempts(conversation, said, hidden=hidden, written=written, team=team))
                for conversation, said in candidates
            ]
            known = trying.create_task(self._reference(task, written, team))
        attempts = [one.result() for one in tried]
        solved = [
            ScoredConversation(conversation, reward=own[-1].value, reward_parts={"first_attempt": own[0].value})
            for (conversation, _), own in zip(candidates, attempts, strict=True)
        ]
        programs = [*(attempt for own in attempts for attempt in own), *known.result()]
        return Episode((*solved, *self._writers(writer, programs, outcomes=[own[-1].value for own in attempts])))

    async def _attempts(
        self, conversation: Conversation, said: str, *, hidden: Tests, written: Tests | None, team: Team
    ) -> list[Attempt]:
        attempts = [await self._attempt(self._code.program(said), hidden=hidden, written=written, team=team)]
        while len(attempts) <= self._retries:
            failed = attempts[-1].written
            if failed is None or failed.all_passed:
                break
            conversation.hear(filled(self._retry_text, feedback=failed.failure or ""))
            if conversation.over:
                break
            program = self._code.program(await conversation.speak())
            attempts.append(await self._attempt(program, hidden=hidden, written=written, team=team))
        return attempts

    async def _attempt(self, program: str, *, hidden: Tests, written: Tests | None, team: Team) -> Attempt:
        judged = await self._code.run_hidden(program, hidden, team.sandbox)
        return Attempt(
            value=self._code.value(judged),
            right=judged.all_passed,
            written=await self._by_written(program, written, team),
        )

    async def _by_written(self, program: str, written: Tests | None, team: Team) -> Judged | None:
        if written is None:
            return None
        try:
            return await self._code.run(program, written, team.sandbox)
        except TestsUnreadable:
            return None

    async def _reference(self, task: Assignment, written: Tests | None, team: Team) -> list[Attempt]:
        if self._reference_column is None:
            return []
        program = str(task.column(self._reference_column))
        return [Attempt(value=1.0, right=True, written=await self._by_written(program, written, team))]

    def _writers(
        self, writer: Conversation, programs: Sequence[Attempt], *, outcomes: Sequence[float]
    ) -> list[ScoredConversation]:
        if not self._separates:
            return [ScoredConversation(writer, reward=sum(outcomes) / len(outcomes))]
        if any(program.written is None for program in programs):
            return [ScoredConversation(writer, reward=0.0)]
        accepts = _share([program.accepted for program in programs if program.right])
        rejects = _share([not program.accepted for program in programs if not program.right])
        if accepts is None or rejects is None:
            return []
        # The share of pairs that are told apart is the product, as each program is accepted or not by itself.
        parts = {"accepts_right": accepts, "rejects_wrong": rejects}
        return [ScoredConversation(writer, reward=accepts * rejects, reward_parts=parts)]

    def _tests(self, said: str, hidden: Tests) -> Tests | None:
        """None if they cannot be read. They call what the hidden ones call."""
        text = filled(self._tests_template, tests=program_in(said))
        try:
            return read_tests(text, function=hidden.function if isinstance(hidden, Calls) else None)
        except TestsUnreadable:
            return None


def _share(told: Sequence[bool]) -> float | None:
    return sum(told) / len(told) if told else None
