"""Runs a program against tests in a sandbox. What is expected never goes where the program could read it."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from trimtab.rollout.code import agreement
from trimtab.rollout.code.tests import Calls, StdinCases, Tests, TestsUnreadable, UnitTests
from trimtab.rollout.sandbox.contract import End, Ended, Program, ProgramLimits, Sandbox, SandboxFailed

_SOLUTION, _CALLS, _UNIT_TESTS = "solution.py", "calls.py", "unit_tests.py"
_SHOWN = 300


@dataclass(frozen=True, kw_only=True)
class JudgeLimits:
    case_s: float = 6.0
    """For one case: a run of the program, a call or a unit test."""
    all_s: float = 60.0
    """For all of them, as far as the sandbox allows it to one run."""
    memory_bytes: int = 512 << 20


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How a program did. Cases that were not run are not passed."""

    passed: int
    total: int
    timed_out: bool
    failure: str | None
    """About the first case that failed, for the one who wrote the program."""

    @property
    def all_passed(self) -> bool:
        return self.passed == self.total

    @property
    def share(self) -> float:
        return self.passed / self.total


class Judge:
    """`until_failure` leaves out the cases after one that failed, where all of them count or none."""

    def __init__(
        self,
        limits: JudgeLimits,
        *,
        until_failure: bool,
        new_secret: Callable[[], bytes] = lambda: secrets.token_bytes(32),
    ) -> None:
        self._limits = limits
        self._until_failure = until_failure
        self._new_secret = new_secret

    async def judge(self, code: str, tests: Tests, sandbox: Sandbox) -> Judged:
        """Raises SandboxFailed, and TestsUnreadable for unit tests that are no Python."""
        if isinstance(tests, StdinCases):
            return await self._stdin(code, tests, sandbox)
        if isinstance(tests, Calls):
            return await self._calls(code, tests, sandbox)
        return await self._unit_tests(code, tests, sandbox)

    async def _stdin(self, code: str, tests: StdinCases, sandbox: Sandbox) -> Judged:
        """A run for each case: the program has only ever seen the one."""
        files = {_SOLUTION: _bytes(code)}
        passed, failure, timed_out, left_s = 0, None, False, self._limits.all_s
        for case in tests.cases:
            program = Program(
                command=("python3", _SOLUTION),
                files=files,
                stdin=_bytes(case.given),
                limits=self._program_limits(min(self._limits.case_s, left_s)),
            )
            ended = await sandbox.run(program)
            # Time that a program waited for its turn is not its own.
            left_s -= ended.usage.wall_s
            timed_out = timed_out or ended.end is End.TIME
            printed = ended.stdout.decode(errors="replace")
            if ended.succeeded and agreement.prints(printed, case.expected):
                passed += 1
            else:
                failure = failure or _on_input(case.given, expected=case.expected, got=_told(ended, printed))
                if self._until_failure:
                    break
            if left_s <= 0:
                timed_out = True
                break
        return Judged(
            passed=passed, total=len(tests.cases), timed_out=timed_out, failure=failure or _unrun(passed, tests)
        )

    async def _calls(self, code: str, tests: Calls, sandbox: Sandbox) -> Judged:
        """One process for all calls: what it could find out there are arguments."""
        job = {
            "code": code,
            "function": tests.function,
            "arguments": [list(case.arguments) for case in tests.cases],
            "seconds": self._limits.case_s,
        }
        ended = await sandbox.run(self._harness(_CALLS, job))
        results = _begun(ended)
        passed, failure = 0, None
        for case in tests.cases:
            result = next(results, None)
            if result is not None and "value" in result and agreement.returns(result["value"], case.expected):
                passed += 1
                continue
            got = _told(ended, "") if result is None else str(result.get("error", json.dumps(result.get("value"))))
            given = f"{tests.function}({', '.join(map(json.dumps, case.arguments))})"
            failure = failure or _on_input(given, expected=json.dumps(case.expected), got=got)
        return Judged(passed=passed, total=len(tests.cases), timed_out=ended.end is End.TIME, failure=failure)

    async def _unit_tests(self, code: str, tests: UnitTests, sandbox: Sandbox) -> Judged:
        secret = self._new_secret()
        job = {"code": code, "tests": tests.sources, "seconds": self._limits.case_s, "secret": secret.hex()}
        ended = await sandbox.run(self._harness(_UNIT_TESTS, job))
        failure: str | None = None
        passed, total, late = 0, 1, ended.end is End.TIME
        for told in _begun(ended):
            if "unprotected" in told and _is_signed(told, "unprotected", secret):
                raise SandboxFailed("processes in it can look into each other, so unit tests cannot be run")
            if "why" in told:
                late = late or told.get("late") is True
                failure = failure or f"{told.get('failed')}: {told['why']}"[:_SHOWN]
            if "broken" in told and _is_signed(told, f"broken {told['broken']}", secret):
                raise TestsUnreadable(str(told["broken"]))
            if "passed" in told and _is_signed(told, f"{told['passed']}/{told.get('total')}", secret):
                passed, total = int(told["passed"]), int(told["total"])
        if passed < total and failure is None:
            failure = _told(ended, "the tests did not come to their end")
        return Judged(
            passed=passed,
            total=max(1, total),
            timed_out=late,
            failure=failure if passed < total else None,
        )

    def _harness(self, name: str, job: dict[str, Any]) -> Program:
        """One run for all cases, so it may take what any sandbox allows, also where a case may take less."""
        seconds = min(self._limits.all_s, max(self._limits.case_s, ProgramLimits().wall_s))
        return Program(
            command=("python3", "-I", "-B", name),
            files={name: resources.files("trimtab.rollout.code.inside").joinpath(name).read_bytes()},
            stdin=_bytes(json.dumps(job)),
            limits=self._program_limits(seconds),
        )

    def _program_limits(self, seconds: float) -> ProgramLimits:
        return replace(ProgramLimits(), wall_s=seconds, cpu_s=seconds, memory_bytes=self._limits.memory_bytes)


def _begun(ended: Ended) -> Iterator[dict[str, Any]]:
    """What follows after the harness has begun. Raises SandboxFailed where it has not: the program had no chance."""
    documents = _documents(ended)
    first = next(documents, None)
    if first is not None and first.get("unprotected") is True:
        raise SandboxFailed("processes in it can look into each other, so unit tests cannot be run")
    if first != {"began": True}:
        last = ended.stderr.decode(errors="replace").strip()[-_SHOWN:]
        raise SandboxFailed(f"the tests did not begin: {ended.end.value}, exit code {ended.exit_code}: {last}")
    return documents


def _documents(ended: Ended) -> Iterator[dict[str, Any]]:
    """Those of the output's lines that are one. What the program wrote among them is not to be relied on."""
    for line in ended.stdout.splitlines():
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            yield document


def _is_signed(told: dict[str, Any], text: str, secret: bytes) -> bool:
    signed = hmac.new(secret, text.encode(errors="replace"), hashlib.sha256).hexdigest()
    return hmac.compare_digest(str(told.get("signed")).encode(errors="replace"), signed.encode())


def _bytes(text: str) -> bytes:
    """A policy may say what is no Unicode."""
    return text.encode(errors="replace")


def _told(ended: Ended, printed: str) -> str:
    if ended.end is End.TIME:
        return "nothing within the time limit"
    if ended.end is not End.EXITED:
        return f"nothing: it was ended by its {ended.end.value} limit"
    if ended.exit_code:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"exit code {ended.exit_code}: {''.join(last)}"
    return printed


def _on_input(given: str, *, expected: str, got: str) -> str:
    shown = [text.strip()[:_SHOWN] for text in (given, expected, got)]
    return "On {!r} it should give {!r}, and gave {!r}.".format(*shown)


def _unrun(passed: int, tests: StdinCases) -> str | None:
    return None if passed == len(tests.cases) else "its time was over before all cases were run"
