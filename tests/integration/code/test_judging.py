"""Right programs pass their tests and wrong ones fail them, in a sandbox, whatever form the tests have."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.rollout.code.judging import Judge, Judged, JudgeLimits
from trimtab.rollout.code.tests import TestsUnreadable, read_tests
from trimtab.rollout.sandbox.contract import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

STDIN = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLS = {"inputs": [[1, 2], [3, 4]], "outputs": [3, 7], "fn_name": "add"}
ASSERTS = ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]
ADD = "def add(a, b):\n    return a + b\n"


async def judged(
    sandbox: Sandbox, code: str, tests: Any, *, case_s: float = 8.0, until_failure: bool = False
) -> Judged:
    judge = Judge(JudgeLimits(case_s=case_s, all_s=40.0), until_failure=until_failure)
    return await judge.judge(code, read_tests(tests), sandbox)


@pytest.mark.parametrize(
    ("code", "tests", "passed"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", STDIN, 2),
        ("print(3.0)", STDIN, 1),
        ("print(3)\nraise SystemExit(1)", STDIN, 0),
        (ADD, CALLS, 2),
        ("class Solution:\n    def add(self, a, b):\n        print('noise')\n        return a + b", CALLS, 2),
        ("def add(a, b):\n    return 3", CALLS, 1),
        ("def sub(a, b):\n    return 3", CALLS, 0),
        (ADD, ASSERTS, 2),
        ("def add(a, b):\n    return 3", ASSERTS, 1),
        ("def add(a, b)", ASSERTS, 0),
    ],
)
async def test_a_program_passes_what_it_gets_right(sandbox: Sandbox, code: str, tests: Any, passed: int) -> None:
    found = await judged(sandbox, code, tests)
    assert (found.passed, found.total) == (passed, 2), found
    assert (found.failure is None) == (passed == 2)


@pytest.mark.parametrize(
    ("code", "tests", "passed", "total"),
    [
        (ADD, "def test_a():\n    assert add(1, 2) == 3\ndef test_b():\n    assert add(1, 1) == 3", 1, 2),
        (ADD, "async def test_a():\n    assert add(1, 1) == 3", 0, 1),
        (ADD, "def test_a(fixture):\n    assert add(1, 1) == 2", 0, 1),
        (
            ADD,
            "import unittest\nfrom solution import add\nclass T(unittest.TestCase):\n"
            "    def test_a(self):\n        self.assertEqual(add(1, 2), 3)\n"
            "    def test_b(self):\n        self.assertEqual(add(1, 2), 4)",
            *(1, 2),
        ),
        (
            "class Stack:\n    def __init__(self): self.kept = []\n    def push(self, one): self.kept.append(one)\n"
            "    def pop(self): return self.kept.pop()\n    def __len__(self): return len(self.kept)",
            "s = Stack()\ns.push((1, {2: {3.5}}))\nassert len(s) == 1\nassert s.pop() == (1, {2: {3.5}})\n"
            "try:\n    s.pop()\nexcept IndexError:\n    pass\nelse:\n    assert False",
            *(1, 1),
        ),
        ("def turn(given):\n    given.reverse()", "l = [1, 2, 3]\nturn(l)\nassert l == [3, 2, 1]", 1, 1),
        ("def count():\n    yield from range(3)", "assert list(count()) == [0, 1, 2]\nassert 2 in count()", 1, 1),
        ("import math\ndef half(x):\n    return x / 2", "assert math.isclose(half(0.2), 0.1)", 1, 1),
    ],
)
async def test_unit_tests_of_every_form(sandbox: Sandbox, code: str, tests: str, passed: int, total: int) -> None:
    found = await judged(sandbox, code, tests)
    assert (found.passed, found.total) == (passed, total), found


async def test_what_failed_is_told(sandbox: Sandbox) -> None:
    wrong = "def add(a, b):\n    return a - b\n"
    printed = await judged(sandbox, "print(4)", STDIN)
    assert printed.failure == "On '1 2' it should give '3', and gave '4'."
    called = await judged(sandbox, wrong, CALLS)
    assert called.failure == "On 'add(1, 2)' it should give '3', and gave '-1'."
    asserted = await judged(sandbox, wrong, ASSERTS)
    assert asserted.failure == "tests: AssertionError in `assert add(1, 2) == 3`"


@pytest.mark.parametrize(
    ("code", "tests", "passed"),
    [
        ("n = input()\nwhile n == '1 2':\n    pass\nprint(7)", STDIN, 1),
        ("def add(a, b):\n    while a == 1:\n        pass\n    return 7", CALLS, 1),
        ("def add(a, b):\n    while a == 1:\n        pass\n    return 7", ASSERTS, 1),
    ],
)
async def test_a_program_that_hangs_has_failed_that_case_alone(
    sandbox: Sandbox, code: str, tests: Any, passed: int
) -> None:
    found = await judged(sandbox, code, tests, case_s=2.0)
    assert found.passed == passed, found
    assert "time" in str(found.failure) or "took over" in str(found.failure) or "OutOfTime" in str(found.failure)


async def test_after_the_first_failure_nothing_is_run_where_all_must_pass(sandbox: Sandbox) -> None:
    found = await judged(sandbox, "print(7)", STDIN, until_failure=True)
    assert (found.passed, found.total) == (0, 2)


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("assert add(1, 2) ==", "SyntaxError"),
        ("def check(candidate):\n    assert candidate(1, 2) == 3", "assert nothing"),
    ],
)
async def test_unit_tests_that_cannot_be_run_are_not_the_programs_fault(sandbox: Sandbox, tests: str, why: str) -> None:
    with pytest.raises(TestsUnreadable, match=why):
        await judged(sandbox, ADD, tests)
