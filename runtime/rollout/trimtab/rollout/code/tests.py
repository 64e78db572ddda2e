"""What a column of tests says: texts to read and to print, calls and their results, or Python that asserts.

The forms are those of the sets that people have: `inputs` and `outputs` with or without `fn_name` (APPS, TACO,
DeepCoder), a list of cases with `input` and `output` each (LiveCodeBench), and Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CALLED = ("functional", "function_call")


class TestsUnreadable(ValueError):
    """It says what is wrong with them."""

    __test__ = False


@dataclass(frozen=True)
class StdinCase:
    """What the program reads, and what it should print."""

    given: str
    expected: str


@dataclass(frozen=True)
class StdinCases:
    cases: tuple[StdinCase, ...]


@dataclass(frozen=True)
class CallCase:
    arguments: Sequence[Any]
    expected: Any


@dataclass(frozen=True)
class Calls:
    """Of a function of the program's, or of a method of its class Solution."""

    function: str
    cases: tuple[CallCase, ...]


@dataclass(frozen=True)
class UnitTests:
    """Modules of Python: assertions, functions `test_…`, classes of unittest. They call the program by its names."""

    sources: tuple[str, ...]


Tests = StdinCases | Calls | UnitTests


def read_tests(given: Any, *, function: str | None = None) -> Tests:
    """`function` is what is called where the cases do not say it. Raises TestsUnreadable."""
    value = _parsed(given) if isinstance(given, str) else given
    if isinstance(value, Mapping):
        return _of_columns(value, function=function)
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence) or not value:
        raise TestsUnreadable(f"a {type(given).__name__} that has no test: {given!r:.200}")
    if all(isinstance(one, Mapping) for one in value):
        return _of_cases(value, function=function)
    if all(isinstance(one, str) and one.strip() for one in value):
        return UnitTests(tuple(value))
    raise TestsUnreadable(f"a list of cases with input and output, or of texts of Python, is needed: {given!r:.200}")


def _parsed(text: str) -> Any:
    """A text is JSON, or Python as it is. None of Python's begins with a brace."""
    begin = text.lstrip()[:1]
    if begin not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if begin == "{":
            raise TestsUnreadable(f"it begins like JSON, and is none: {error}") from None
        return text


def _of_columns(value: Mapping[str, Any], *, function: str | None) -> Tests:
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise TestsUnreadable(
            f"inputs and outputs must be lists of the same length, at least 1; there are {', '.join(map(str, value))}"
        )
    name = value.get("fn_name") or function
    return _tests(list(zip(inputs, outputs, strict=True)), function=name)


def _of_cases(value: Sequence[Mapping[str, Any]], *, function: str | None) -> Tests:
    for case in value:
        if "input" not in case or "output" not in case:
            raise TestsUnreadable(f"a case has input and output; this one has {', '.join(map(str, case)) or 'nothing'}")
    first = value[0]
    metadata = first.get("metadata")
    name = first.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None) or function
    kind = first.get("testtype") or first.get("type")
    if kind in _CALLED and not name:
        raise TestsUnreadable(f"a case of type {kind} needs fn_name, or func_name in its metadata")
    called = name if kind in _CALLED or kind is None else None
    return _tests([(case["input"], case["output"]) for case in value], function=called)


def _tests(pairs: Sequence[tuple[Any, Any]], *, function: object) -> Tests:
    if not function:
        return StdinCases(tuple(StdinCase(_lines(given), _lines(expected)) for given, expected in pairs))
    if not isinstance(function, str):
        raise TestsUnreadable(f"fn_name is {function!r:.80}: the name of a function is needed")
    return Calls(function, tuple(CallCase(_arguments(given), _result(expected)) for given, expected in pairs))


def _lines(given: Any) -> str:
    if isinstance(given, list):
        return "\n".join(map(_lines, given))
    if isinstance(given, str):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TestsUnreadable(f"a program reads and prints text; this is a {type(given).__name__}: {given!r:.200}")
    return str(given)


def _arguments(given: Any) -> Sequence[Any]:
    """A list of them, or text with one in JSON on each line."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        return [given]
    return [_json(line) for line in given.splitlines() if line.strip()]


def _result(given: Any) -> Any:
    return _json(given) if isinstance(given, str) else given


def _json(text: str) -> Any:
    """A text that is not JSON is itself: some sets quote texts, others do not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
