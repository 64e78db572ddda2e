"""The pretrained model takes a step and is evaluated, weights and all; what it learns takes longer than a test."""

from __future__ import annotations

import pytest

from tests.support.examples import Learn

pytestmark = pytest.mark.slow

_STEPS = 2


def test_the_pretrained_model_is_trained_published_and_evaluated(learn: Learn) -> None:
    run = learn("smollm2", steps=_STEPS, data={"batchSize": 16}, evaluation={"everySteps": _STEPS})
    curve = run.policies["solver"]
    assert [point.step for point in curve.steps] == list(range(_STEPS))
    scores = curve.scores["held-out"]
    assert len(scores) == 2
    assert scores[-1].version == _STEPS
    # Far from chance, which is one in 49,152 tokens: these are weights that somebody has trained before.
    assert scores[0].score > 0.05
