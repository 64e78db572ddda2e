"""The manifests differ in their data algorithm alone, and that is what costs or saves rollouts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from examples.curves.record import Run
from examples.curves.running import variants
from tests.support.examples import Learn

pytestmark = pytest.mark.slow

_STEPS = 16
_BATCH = 128
_EXAMPLE = "data_algorithms"
_ALGORITHMS = ("vanilla", "dynamic_sampling", "replay", "greso", "combined")


@pytest.fixture(scope="module")
def runs(learn: Learn) -> dict[str, Run]:
    return {name: learn(_EXAMPLE, variant=name, steps=_STEPS) for name in ("dynamic_sampling", "replay", "combined")}


def _manifest(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(variants(_EXAMPLE)[name].read_text())
    return manifest


def test_there_is_a_manifest_for_each_algorithm() -> None:
    assert set(variants(_EXAMPLE)) == set(_ALGORITHMS)


@pytest.mark.parametrize("name", _ALGORITHMS)
def test_manifests_differ_in_the_data_algorithm_alone(name: str) -> None:
    manifest, vanilla = _manifest(name), _manifest("vanilla")
    for field in ("filter", "replay", "curator"):
        manifest["spec"]["data"].pop(field, None)
    manifest["metadata"] = vanilla["metadata"]
    assert manifest == vanilla


def test_accuracy_on_held_out_prompts_rises(runs: dict[str, Run]) -> None:
    for run in runs.values():
        scores = run.policies["solver"].scores["held-out"]
        assert scores[-1].score > scores[0].score + 0.1


def test_dynamic_sampling_rolls_out_more_than_it_trains_on_and_replay_less_than_that(runs: dict[str, Run]) -> None:
    """Four tenths of the prompts can never have variance, so a batch costs at least 1/0.6 of itself."""
    sampled, replayed = (runs[name].policies["solver"].steps[-1].rollouts for name in ("dynamic_sampling", "replay"))
    assert sampled > 1.5 * _STEPS * _BATCH
    assert replayed < 0.75 * sampled


def test_all_three_together_learn_and_cost_no_more_than_replay(runs: dict[str, Run]) -> None:
    combined, sampled = (runs[name].policies["solver"].steps[-1].rollouts for name in ("combined", "dynamic_sampling"))
    assert combined < 0.75 * sampled
