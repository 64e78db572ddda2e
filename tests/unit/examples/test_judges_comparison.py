"""Intervals over seeds, as the comparison of judges prints them."""

from __future__ import annotations

import math

import pytest

from examples.curves.record import Curves, PolicyCurve, Run, StepPoint
from examples.judges.compare import comparison, interval


def run(variant: str, seed: int, *outcomes: float) -> Run:
    steps = tuple(StepPoint(step, float(step), step, reward) for step, reward in enumerate(outcomes))
    return Run(variant=variant, seed=seed, policies={"solver": PolicyCurve(steps=steps, scores={})})


def test_an_interval_is_students() -> None:
    assert interval([0.5, 0.7, 0.6]) == (pytest.approx(0.6), pytest.approx(4.303 * 0.1 / math.sqrt(3)))
    assert interval([0.5]) == (0.5, math.inf)


def test_beginning_and_end_of_each_way_are_compared() -> None:
    quick = [run("judge", seed, *[0.2] * 10, *[0.8 + seed / 10] * 10) for seed in (0, 1)]
    table = comparison(Curves(example="judges", runs=(*quick, run("outcome", 0, *[0.2] * 20))))
    assert "| judge | 0 1 | 0.20 ± 0.00 | 0.85 ± 0.64 | 0.53 ± 0.32 |" in table
    assert "| outcome | 0 | 0.20 | 0.20 | 0.20 |" in table
