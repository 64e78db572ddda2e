"""A KL penalty whose reference is a stage: the same update as with the reference in memory, without the memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.quickstart.make import make_model
from tests.support.trainer.same_update import policy_with
from tests.support.trainer.samples import rows, train_on
from tests.support.trainer.scored_columns import logprobs_under, with_columns
from trimtab.trainer.batch import ColumnMissing, Row
from trimtab.trainer.learner import Learner

SAMPLES = 12
STAGE = "reference"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    make_model(folder, seed=1)
    return folder


def learner_with(model: Path, *, kl: dict[str, Any], reference: Path | None = None, **trainer: Any) -> Learner:
    policy = policy_with({"name": "grpo", "kl": {"coefficient": 0.5, "estimator": "k3", **kl}}, **trainer)
    return Learner(policy, model_path=model, reference_path=reference)


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.model.named_parameters()}


def scored(step: int, reference: Path) -> list[Row]:
    made = rows(SAMPLES, seed=step)
    return with_columns(made, {STAGE: logprobs_under(reference, made)})


@pytest.mark.parametrize("estimator", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("k1", "k2")), "k3"])
def test_the_reference_as_a_stage_makes_the_update_of_one_in_memory(model: Path, other: Path, estimator: str) -> None:
    inline = learner_with(model, kl={"estimator": estimator}, reference=other)
    staged = learner_with(model, kl={"estimator": estimator, "stage": STAGE})
    without = learner_with(model, kl={"coefficient": 0.0})
    made = scored(0, other)
    outcomes = [train_on(one, made, of=SAMPLES) for one in (inline, staged, without)]
    for name, tensor in weights(inline).items():
        torch.testing.assert_close(weights(staged)[name], tensor, rtol=0, atol=1e-5, msg=name)
    embedding = "model.embed_tokens.weight"
    assert (weights(inline)[embedding] - weights(without)[embedding]).abs().max() > 1e-4, "the penalty did nothing"
    assert outcomes[1].measures.reference_kl == pytest.approx(outcomes[0].measures.reference_kl, abs=1e-5)


def test_no_reference_is_loaded(model: Path, other: Path) -> None:
    """There is none to load: the folder that would be it is not there."""
    learner_with(model, kl={"stage": STAGE}, reference=other.parent / "nothing")


def test_a_row_without_the_column_is_not_trained(model: Path, other: Path) -> None:
    made = scored(0, other)
    made[3] = replace(made[3], columns={})
    with pytest.raises(ColumnMissing, match=f"row {made[3].key} of group .* has no column of stage {STAGE}"):
        train_on(learner_with(model, kl={"stage": STAGE}), made, of=SAMPLES)


def test_a_row_of_which_nothing_is_trained_needs_no_column(model: Path, other: Path) -> None:
    made = scored(0, other)
    made[3] = replace(made[3], columns={}, mask=np.zeros_like(made[3].mask))
    outcome = train_on(learner_with(model, kl={"stage": STAGE}), made, of=SAMPLES)
    assert not outcome.skipped
