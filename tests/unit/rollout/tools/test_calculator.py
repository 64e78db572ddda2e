"""A calculator that reads what a model wrote: numbers come out, and nothing else ever happens."""

from __future__ import annotations

import pytest

from trimtab.rollout.tools.calculator import calculated


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("(3 + 4) * 2**10", "7168"),
        ("2^10", "1024"),
        (" 7 / 2 ", "3.5"),
        ("-7 // 2 + 10 % 4", "-2"),
        ("sqrt(16) + max(1, 2)", "6.0"),
        ("round(pi, 2)", "3.14"),
        ("2**-1", "0.5"),
    ],
)
def test_expressions_are_worked_out(expression: str, result: str) -> None:
    assert calculated(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "two plus two",
        "1 +",
        "1 / 0",
        "9**9**9",
        "(9**999)**9",
        "1e308 * 1e308 - exp(1000)",
        "sqrt(-1)",
        "(-1) ** 0.5",
        "__import__('os').system('true')",
        "().__class__",
        "open('/etc/passwd')",
        "[1 for _ in range(9**9)]",
        "'a' * 10**9",
        "True + 1",
        "1 << 10**9",
        "round(1, ndigits=2)",
        "abs()",
        "(" * 240 + "1" + ")" * 240,
        "1+" * 400 + "1",
    ],
)
def test_what_is_no_sum_is_told_as_an_error(expression: str) -> None:
    assert calculated(expression).startswith("Error: ")
