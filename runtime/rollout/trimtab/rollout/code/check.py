"""`check: tests`: the answer is a program, and the column has tests for it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

from trimtab.rollout.code.judging import Judge, Judged, JudgeLimits
from trimtab.rollout.code.program_text import program_in
from trimtab.rollout.code.tests import Tests, TestsUnreadable, read_tests
from trimtab.rollout.sandbox.contract import Sandbox
from trimtab.rollout.workflows.errors import PromptUnusable
from trimtab.rollout.workflows.score import Score
from trimtab.rollout.workflows.team import Team

_ALL, _SHARE = "all", "share"
_CODE = "{code}"
_MOST_KNOWN = 4096
PROGRAM_TIMEOUT = "program_timeout"
"""The part of a reward that is 1 where the program took too long. Its mean is their share."""


class CodeTests:
    """Scores 1 where all tests pass; with `score: share`, the share that does. `template` is what the program is put
    into, such as imports that all are to have. A program that takes longer than `case_timeout_s` for a case has failed
    it, and after `timeout_s` all that are left. The same program is not run twice on the same tests.
    """

    def __init__(
        self,
        *,
        score: str = _ALL,
        template: str = _CODE,
        case_timeout_s: float = 6.0,
        timeout_s: float = 60.0,
        memory_mib: int = 512,
    ) -> None:
        if score not in (_ALL, _SHARE):
            raise ValueError(f"check_args.score is {score!r}: it is {_ALL} or {_SHARE}")
        if _CODE not in template:
            raise ValueError(f"check_args.template lacks {_CODE}")
        for name, limit in (("case_timeout_s", case_timeout_s), ("timeout_s", timeout_s), ("memory_mib", memory_mib)):
            if limit <= 0:
                raise ValueError(f"check_args.{name} is {limit}: it must be more than 0")
        self._by_share = score == _SHARE
        self._template = template
        limits = JudgeLimits(case_s=case_timeout_s, all_s=timeout_s, memory_bytes=memory_mib << 20)
        self._judge = Judge(limits, until_failure=not self._by_share)
        # Episodes of a group write the same programs, all the more the more they have learnt.
        self._known: OrderedDict[bytes, Judged] = OrderedDict()

    async def score(self, answer: str | None, expected: Any, team: Team, /) -> Score:
        tests = self.hidden(expected)
        if answer is None:
            return Score(0.0, {PROGRAM_TIMEOUT: 0.0})
        judged = await self.run_hidden(self.program(answer), tests, team.sandbox)
        return Score(self.value(judged), {PROGRAM_TIMEOUT: float(judged.timed_out)})

    def program(self, said: str) -> str:
        """What a policy said, as a program."""
        return self._template.replace(_CODE, program_in(said))

    def hidden(self, column: Any) -> Tests:
        """Those of the prompt. Raises PromptUnusable."""
        try:
            return read_tests(column)
        except TestsUnreadable as error:
            raise PromptUnusable(f"check: tests: {error}") from None

    async def run(self, program: str, tests: Tests, sandbox: Sandbox) -> Judged:
        """Raises SandboxFailed and TestsUnreadable."""
        key = hashlib.sha256(repr((program, tests)).encode(errors="replace")).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        judged = await self._judge.judge(program, tests, sandbox)
        # Time depends on the machine: another run may be quicker.
        if not judged.timed_out:
            self._known[key] = judged
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return judged

    async def run_hidden(self, program: str, tests: Tests, sandbox: Sandbox) -> Judged:
        """As `run`, for tests of the prompt. Raises SandboxFailed and PromptUnusable."""
        try:
            return await self.run(program, tests, sandbox)
        except TestsUnreadable as error:
            raise PromptUnusable(f"check: tests: {error}") from None

    def value(self, judged: Judged) -> float:
        return judged.share if self._by_share else float(judged.all_passed)
