"""Tests as the common sets write them, and programs as policies say them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.rollout.code.agreement import prints, returns
from trimtab.rollout.code.program_text import program_in
from trimtab.rollout.code.tests import (
    CallCase,
    Calls,
    StdinCase,
    StdinCases,
    Tests,
    TestsUnreadable,
    UnitTests,
    read_tests,
)

ADDED = Calls("add", (CallCase([1, [2]], 3),))
READ = StdinCases((StdinCase("1\n2", "3"),))
LIVE = {"input": "1\n[2]", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}


@pytest.mark.parametrize(
    ("given", "tests"),
    [
        ({"inputs": ["1\n2"], "outputs": ["3"]}, READ),
        (json.dumps({"inputs": ["1\n2"], "outputs": ["3"]}), READ),
        ({"inputs": [["1", 2]], "outputs": [["3"]]}, READ),
        ({"inputs": [[1, [2]]], "outputs": [3], "fn_name": "add"}, ADDED),
        ({"inputs": ["1\n[2]\n"], "outputs": ["3"], "fn_name": "add"}, ADDED),
        ([{"input": "1\n2", "output": "3", "testtype": "stdin"}], READ),
        ([{"input": "1\n2", "output": "3", "type": "stdin_stdout"}], READ),
        ([LIVE], ADDED),
        (json.dumps([{"type": "function_call", "fn_name": "add", "input": [1, [2]], "output": 3}]), ADDED),
        ("assert add(1, 2) == 3", UnitTests(("assert add(1, 2) == 3",))),
        ("[x for x in []]\nassert True", UnitTests(("[x for x in []]\nassert True",))),
        (["assert 1", "assert 2"], UnitTests(("assert 1", "assert 2"))),
        ('["assert 1"]', UnitTests(("assert 1",))),
    ],
)
def test_every_form_is_read(given: Any, tests: Tests) -> None:
    assert read_tests(given) == tests


def test_cases_that_name_no_function_call_the_one_they_are_for() -> None:
    assert read_tests({"inputs": [[1, [2]]], "outputs": [3]}, function="add") == ADDED


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"inputs": ["1"]}, "inputs and outputs must be lists"),
        ({"inputs": ["1"], "outputs": []}, "of the same length"),
        ({"inputs": [], "outputs": []}, "at least 1"),
        ({"inputs": [{}], "outputs": ["1"]}, "a program reads and prints text"),
        ([{"input": "1"}], "a case has input and output; this one has input"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "needs fn_name"),
        ([], "no test"),
        ("", "is needed"),
        (7, "no test"),
        ('{"inputs": [1], "outputs": [+]}', "begins like JSON, and is none"),
        (["assert 1", 2], "is needed"),
    ],
)
def test_what_is_no_test_is_refused(given: Any, why: str) -> None:
    with pytest.raises(TestsUnreadable, match=why):
        read_tests(given)


@pytest.mark.parametrize(
    ("printed", "expected", "agrees"),
    [
        ("3\n", "3", True),
        (" 3 \n\n", "3", True),
        ("3.0", "3", True),
        ("1 2.50\nok", "1 2.5\nok", True),
        ("3\n4", "3", False),
        ("", "3", False),
        ("3 3", "3", False),
        ("nan", "3", False),
        ("sNaN", "3", False),
        ("Yes", "YES", False),
    ],
)
def test_what_is_printed(printed: str, expected: str, agrees: bool) -> None:
    assert prints(printed, expected) is agrees


@pytest.mark.parametrize(
    ("value", "expected", "agrees"),
    [
        (3, 3, True),
        (0.1 + 0.2, 0.3, True),
        ([1, {"a": [2.0]}], [1, {"a": [2]}], True),
        (5, [5], True),
        ([5], [5], True),
        ([5], 5, False),
        (True, 1, False),
        (1, True, False),
        ("1", 1, False),
        (None, 0, False),
        (None, None, True),
        (10**400, 1.5, False),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
    ],
)
def test_what_is_returned(value: Any, expected: Any, agrees: bool) -> None:
    assert returns(value, expected) is agrees


@pytest.mark.parametrize(
    ("said", "program"),
    [
        ("So:\n```python\nprint(1)\n```\n", "print(1)\n"),
        ("```\nold\n```\nBetter:\n```py\nnew\n```\nDone.", "new\n"),
        ("~~~\nprint('```')\n~~~", "print('```')\n"),
        ("print(1)", "print(1)"),
        ("```python\nprint(1)", "```python\nprint(1)"),
    ],
)
def test_the_program_is_the_last_fenced_block(said: str, program: str) -> None:
    assert program_in(said) == program
