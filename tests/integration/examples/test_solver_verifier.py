"""Two policies learn in the same episodes, each at its own pace."""

from __future__ import annotations

from statistics import fmean

import pytest

from examples.curves.record import Run
from tests.support.examples import Learn

pytestmark = pytest.mark.slow

_STEPS = 55
_TARGET = 0.7
_WINDOW = 10


@pytest.fixture(scope="module")
def run(learn: Learn) -> Run:
    return learn("solver_verifier", steps=_STEPS, target=_TARGET)


@pytest.mark.parametrize("policy", ["solver", "verifier"])
def test_both_policies_improve(run: Run, policy: str) -> None:
    rewards = [point.reward for point in run.policies[policy].steps]
    assert fmean(rewards[:3]) < 0.25
    assert fmean(rewards[-_WINDOW:]) > 0.5


def test_there_is_no_barrier_between_them(run: Run) -> None:
    """The solver is quicker at its task. The verifier goes on without it."""
    solver, verifier = (run.policies[policy].steps for policy in ("solver", "verifier"))
    assert len(solver) < len(verifier) <= _STEPS
    assert verifier[-1].seconds > solver[-1].seconds


def test_both_are_evaluated_on_held_out_prompts(run: Run) -> None:
    for curve in run.policies.values():
        (scores,) = curve.scores.values()
        assert scores[-1].version > scores[0].version
        assert scores[-1].score > scores[0].score + 0.2
