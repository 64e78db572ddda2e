"""Steps that are scored are learnt from, and a judge that is always wrong does not undo what a policy can do."""

from __future__ import annotations

from statistics import fmean

import pytest

from examples.curves.record import Curves
from examples.curves.running import variants
from examples.judges.compare import comparison
from tests.support.examples import Learn

pytestmark = pytest.mark.slow

_STEPS = dict.fromkeys(("adversary", "judge", "outcome", "verifier"), 30) | {"process": 45}
"""By variant. The critic of the last has to learn first what a turn is worth."""


def test_every_way_of_scoring_learns_and_the_adversary_does_not_destroy(learn: Learn) -> None:
    assert sorted(variants("judges")) == sorted(_STEPS)
    runs = tuple(learn("judges", variant=variant, steps=_STEPS[variant]) for variant in variants("judges"))
    last = {}
    for run in runs:
        outcomes = [point.reward for point in run.policies["solver"].steps]
        assert len(outcomes) == _STEPS[run.variant]
        first, last[run.variant] = fmean(outcomes[:3]), fmean(outcomes[-5:])
        assert 0.1 < first < 0.5, run.variant
    assert last["outcome"] > 0.4
    assert last["judge"] > 0.4
    assert last["process"] > 0.4
    assert last["verifier"] > 0.35
    assert last["adversary"] > 0.2
    table = comparison(Curves(example="judges", runs=runs))
    assert all(f"| {variant} | 0 |" in table for variant in last)
