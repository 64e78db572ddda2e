"""The programs of the example are executed, and both of its manifests learn."""

from __future__ import annotations

from statistics import fmean

import pytest

from examples.curves.record import Run
from examples.programs.make import HIDDEN, OPERATORS, SHOWN, problems
from tests.support.examples import Learn

_STEPS = 45
# After some 80 steps it begins to tell the candidates apart.
_SELECTOR_STEPS = 140


def test_every_problem_and_every_test_tells_the_operators_apart() -> None:
    for a, b in (*SHOWN, (2, 3)):
        assert len({apply(a, b) for apply in OPERATORS.values()}) == len(OPERATORS)
    assert len({tuple(apply(*pair) for pair in HIDDEN) for apply in OPERATORS.values()}) == len(OPERATORS)
    rows = problems(seed=0)
    assert len({row["prompt"] for row in rows}) == len(rows) == len(SHOWN) * len(OPERATORS)


def rewards(run: Run, policy: str) -> list[float]:
    return [point.reward for point in run.policies[policy].steps]


@pytest.mark.slow
def test_a_step_of_each_manifest_runs(learn: Learn) -> None:
    for variant in ("selector", "tests"):
        run = learn("programs", variant=variant, steps=2, data={"groupSize": 4, "batchSize": 16})
        assert len(rewards(run, "solver")) == 2


@pytest.mark.slow
def test_solver_and_test_writer_improve(learn: Learn) -> None:
    run = learn("programs", variant="tests", steps=_STEPS)
    for policy in ("solver", "tester"):
        found = rewards(run, policy)
        assert fmean(found[:3]) < 0.25, policy
        assert fmean(found[-5:]) > fmean(found[:3]) + 0.15, policy


@pytest.mark.slow
def test_solver_improves_and_the_selector_comes_to_choose_better_than_by_chance(learn: Learn) -> None:
    run = learn("programs", variant="selector", steps=_SELECTOR_STEPS)
    solver, selector = rewards(run, "solver"), rewards(run, "selector")
    assert fmean(solver[:3]) < 0.25
    assert fmean(solver[-5:]) > 0.5
    assert fmean(selector[:3]) < 0.25
    assert fmean(selector[-20:]) > 0.6
