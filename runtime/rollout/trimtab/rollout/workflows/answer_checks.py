"""Compares what a policy said with what is known of the right answer. A wrong one is a zero; a check that fails is an
error.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from trimtab.rollout.code.check import CodeTests
from trimtab.rollout.phases import SCORING, phase
from trimtab.rollout.workflows.mathematics import Mathematics, VerificationTimeout
from trimtab.rollout.workflows.on_timeout import CHECK_TIMEOUT, OnTimeout
from trimtab.rollout.workflows.score import Check, Score
from trimtab.rollout.workflows.team import Assignment, PromptUnusable, Team

Made = TypeVar("Made")

_NUMBER = re.compile(
    r"(?:(?<![0-9])[-+])?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
)


class AnswerKey:
    """Finds the answer in what was said, and scores it by a column of the prompt."""

    def __init__(
        self, *, check: str, column: str, pattern: str | None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """`arguments` are those of the check. Raises ValueError, which names what is wrong with them."""
        if check not in CHECKS:
            raise ValueError(f"check is {check!r}: one of {', '.join(CHECKS)}")
        self._check = made(CHECKS[check], arguments, name=f"check_args of check {check}")
        self._column = column
        self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)

    async def score(self, said: str, task: Assignment, team: Team) -> Score:
        expected = task.column(self._column)
        answer = said if self._pattern is None else _last_match(self._pattern, said)
        with phase(SCORING):
            return await self._check.score(answer, expected, team)


class Comparison:
    """A check that compares two texts."""

    def __init__(self, compare: Callable[[str, str], Awaitable[float]]) -> None:
        self._compare = compare

    async def score(self, answer: str | None, expected: Any, team: Team, /) -> Score:
        return Score(0.0 if answer is None else await self._compare(answer, str(expected)))


class MathCheck:
    """Mathematical equality. `on_timeout` is what an answer scores that takes over `timeout_s` to compare: a policy can
    learn to write such answers where the episode fails, as a failure costs it nothing.
    """

    def __init__(self, *, timeout_s: float = 10.0, on_timeout: str | float = "fail") -> None:
        if timeout_s <= 0:
            raise ValueError(f"check_args.timeout_s is {timeout_s}: it must be more than 0")
        self._on_timeout = OnTimeout.of(on_timeout, name="check_args.on_timeout")
        self._mathematics = Mathematics(timeout_s=timeout_s)

    async def score(self, answer: str | None, expected: Any, team: Team, /) -> Score:
        try:
            value = 0.0 if answer is None else await self._mathematics.score(answer, str(expected))
        except VerificationTimeout:
            if self._on_timeout.score is None:
                raise
            return Score(self._on_timeout.score, {CHECK_TIMEOUT: 1.0})
        return Score(value, self._on_timeout.none)


async def characters(answer: str, expected: str) -> float:
    return share_in_place(answer, expected)


async def exact(answer: str, expected: str) -> float:
    """The same text, but for space around it."""
    return float(answer.strip() == expected.strip())


async def numeric(answer: str, expected: str) -> float:
    """The last number in the answer is exactly the expected one, however it is written: 1,000 and 1000.0 are equal."""
    wanted = last_number(expected)
    if wanted is None:
        raise PromptUnusable(f"check: numeric, but the expected answer has no number: {expected[:200]!r}")
    return float(last_number(answer) == wanted)


def share_in_place(answer: str, expected: str) -> float:
    """The share of characters that agree, of the longer of the two."""
    longest = max(len(answer), len(expected))
    if longest == 0:
        return 1.0
    return sum(mine == theirs for mine, theirs in zip(answer, expected, strict=False)) / longest


def last_number(text: str) -> Decimal | None:
    # A minus between two numbers is not a sign, and what is typeset as one is.
    numbers = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def made(kind: Callable[..., Made], arguments: Mapping[str, Any] | None, *, name: str) -> Made:
    """Raises ValueError for arguments that it does not have."""
    try:
        inspect.signature(kind).bind(**(arguments or {}))
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    return kind(**(arguments or {}))


def _last_match(pattern: re.Pattern[str], said: str) -> str | None:
    """The first group of the pattern's last match, or all of the match where there is no group."""
    matches = list(pattern.finditer(said))
    return matches[-1].group(1 if pattern.groups else 0) if matches else None


CHECKS: Mapping[str, Callable[..., Check]] = {
    "characters": lambda: Comparison(characters),
    "exact": lambda: Comparison(exact),
    "numeric": lambda: Comparison(numeric),
    "math": MathCheck,
    "tests": CodeTests,
}
