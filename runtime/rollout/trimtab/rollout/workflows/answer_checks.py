"""Compares what a policy said with the known answer. A wrong one is a zero; a check that fails is an error."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal

from trimtab.rollout.workflows.mathematics import Mathematics
from trimtab.rollout.workflows.team import Assignment, PromptUnusable

AnswerCheck = Callable[[str, str], Awaitable[float]]
"""Scores an answer, given first, against the expected one: 1 is right, 0 is wrong, between them partly right."""

_NUMBER = re.compile(
    r"(?:(?<![0-9])[-+])?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
)


class AnswerKey:
    """Finds the answer in what was said, and scores it by a column of the prompt."""

    def __init__(self, *, check: str, column: str, pattern: str | None) -> None:
        if check not in CHECKS:
            raise ValueError(f"check is {check!r}: one of {', '.join(CHECKS)}")
        self._check = CHECKS[check]()
        self._column = column
        self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)

    async def score(self, said: str, task: Assignment) -> float:
        expected = str(task.column(self._column))
        answer = said if self._pattern is None else _last_match(self._pattern, said)
        return 0.0 if answer is None else await self._check(answer, expected)


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


def _last_match(pattern: re.Pattern[str], said: str) -> str | None:
    """The first group of the pattern's last match, or all of the match where there is no group."""
    matches = list(pattern.finditer(said))
    return matches[-1].group(1 if pattern.groups else 0) if matches else None


CHECKS: Mapping[str, Callable[[], AnswerCheck]] = {
    "characters": lambda: characters,
    "exact": lambda: exact,
    "numeric": lambda: numeric,
    "math": lambda: Mathematics().score,
}
