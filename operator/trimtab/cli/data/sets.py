"""The sets that are known, with the check that their answers are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.cli.data.mathematics import competition, dapo_math, deepscaler, gsm8k, math_set
from trimtab.cli.data.programs import deepcoder, livecodebench
from trimtab.cli.data.questions import hotpotqa, natural_questions


@dataclass(frozen=True)
class DataSet:
    prompt: Callable[[Mapping[str, Any]], dict[str, Any]]
    """A row as a prompt. Raises BadRow."""
    check: str
    """What tells a right answer from a wrong one."""


_MATH = "check: math"
SETS: Mapping[str, DataSet] = {
    "aime": DataSet(competition, _MATH),
    "amc": DataSet(competition, _MATH),
    "dapo-math": DataSet(dapo_math, _MATH),
    "deepcoder": DataSet(deepcoder, "check: tests, answer_column: tests"),
    "deepscaler": DataSet(deepscaler, _MATH),
    "gsm8k": DataSet(gsm8k, "check: numeric"),
    "hotpotqa": DataSet(hotpotqa, "search_qa:SearchQA, exact_match or f1"),
    "livecodebench": DataSet(livecodebench, "check: tests, answer_column: tests"),
    "math": DataSet(math_set, _MATH),
    "nq": DataSet(natural_questions, "search_qa:SearchQA, exact_match or f1"),
}
