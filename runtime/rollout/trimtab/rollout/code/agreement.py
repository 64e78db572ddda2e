"""Whether what a program printed or returned is what a case expects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12


def prints(printed: str, expected: str) -> bool:
    """Line by line, but for space around lines and empty lines at the end; numbers may be written otherwise."""
    said, wanted = _lines(printed), _lines(expected)
    return len(said) == len(wanted) and all(_same_line(one, other) for one, other in zip(said, wanted, strict=True))


def returns(value: Any, expected: Any) -> bool:
    """Floats within rounding. Sets of cases write some results as a list of one."""
    if same(value, expected):
        return True
    return isinstance(expected, list) and len(expected) == 1 and same(value, expected[0])


def same(value: Any, expected: Any) -> bool:
    """Goes no deeper than `expected` does: a program may return what is nested without end."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int) and isinstance(expected, int):
        return value == expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return _close(value, expected)
    if isinstance(expected, str) or isinstance(value, str):
        return bool(value == expected)
    if isinstance(expected, Mapping) and isinstance(value, Mapping):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, Sequence) and isinstance(value, Sequence):
        return len(value) == len(expected) and all(same(one, other) for one, other in zip(value, expected, strict=True))
    return value is None and expected is None


def _close(value: float, expected: float) -> bool:
    try:
        return math.isclose(value, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    except OverflowError:  # an integer that is no float
        return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.rstrip().splitlines()]


def _same_line(one: str, other: str) -> bool:
    if one == other:
        return True
    mine, theirs = one.split(), other.split()
    return len(mine) == len(theirs) and all(a == b or _equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _equal(one: str, other: str) -> bool:
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        return False
