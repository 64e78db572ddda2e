"""What a trainer tells of its newest step: numbers that there are."""

from __future__ import annotations

from math import inf

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.lease import StepTiming
from trimtab.trainer.metrics import StepMeasures, StepOutcome, TrainerMetrics


def test_what_a_step_does_not_have_is_left_out_of_what_is_told_of_it() -> None:
    metrics = TrainerMetrics(Metrics())
    assert metrics.newest == {}
    measures = StepMeasures(tokens=8, sampling_drift=0.5, left_out_fraction=0.25, reference_kl=0.125, entropy=None)
    outcome = StepOutcome(loss=1.0, grad_norm=inf, learning_rate=1e-4, skipped=True, measures=measures)
    metrics.step_done(1, outcome, StepTiming(wait_seconds=1.0, step_seconds=2.0))
    assert metrics.newest == {
        "loss": 1.0,
        "learning_rate": 1e-4,
        "tokens": 8.0,
        "sampling_drift": 0.5,
        "left_out_fraction": 0.25,
        "reference_kl": 0.125,
    }
