"""Every loss against a reference of its own: values and gradients, on random batches and at the edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.trainer.loss_reference import Tokens, reference, tokens
from trimtab.api.algorithm import Algorithm, AlgorithmName
from trimtab.api.policy import Model, Policy
from trimtab.trainer.losses.averaging import Denominator
from trimtab.trainer.losses.recipe import RatioTo, Recipe
from trimtab.trainer.losses.registry import recipe_of
from trimtab.trainer.recipes import policy_recipe

OURS: tuple[AlgorithmName, ...] = ("grpo", "drgrpo", "dapo", "ppo", "gspo", "cispo", "rloo", "m2po", "distill")
NAMES: tuple[AlgorithmName, ...] = (*OURS, "custom")


def algorithm(name: AlgorithmName, **settings: Any) -> Algorithm:
    needed: dict[str, Any] = {
        "distill": {"distill": {"stage": "teacher"}},
        "custom": {"custom": {"entrypoint": "tests.support.trainer.own_algorithm:Tapered"}},
    }
    return Algorithm.model_validate({"name": name, **needed.get(name, {}), **settings})


def made(algorithm: Algorithm) -> Recipe:
    return policy_recipe(Policy(name="p", model=Model(uri="m"), algorithm=algorithm), folder=None)


def recipe(name: AlgorithmName) -> Recipe:
    return made(algorithm(name))


def loss_of(recipe: Recipe, given: Tokens, dtype: torch.dtype = torch.float64) -> tuple[float, np.ndarray]:
    packed = given.packed(dtype)
    total = recipe.averaging.total(packed, recipe.token_losses(packed, recipe.clip))
    total.backward()
    assert packed.logprobs.grad is not None
    return total.item(), packed.logprobs.grad.numpy()


def expected(name: str, recipe: Recipe, given: Tokens) -> tuple[float, list[float]]:
    return reference(name, given, low=recipe.clip.low, high=recipe.clip.high, dual=recipe.clip.dual)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spread", [0.0002, 0.1, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(8))
def test_value_and_gradient_match_the_definition(name: AlgorithmName, seed: int, spread: float) -> None:
    given = tokens(seed, spread=spread)
    value, gradient = loss_of(recipe(name), given)
    wanted, wanted_gradient = expected(name, recipe(name), given)
    assert value == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_close_enough(name: AlgorithmName) -> None:
    given = tokens(3)
    value, gradient = loss_of(recipe(name), given, torch.float32)
    wanted, wanted_gradient = expected(name, recipe(name), given)
    assert value == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("log_ratio", [-1e6, -30.0, 30.0, 1e6])
@pytest.mark.parametrize("advantage", [-2.0, 2.0])
def test_a_ratio_beyond_any_float_stays_finite(name: AlgorithmName, log_ratio: float, advantage: float) -> None:
    old = -0.5 if log_ratio < 0 else -0.5 - log_ratio
    given = Tokens(logprobs=[[old + log_ratio]], old=[[old]], advantages=[advantage], weights=[[1.0]])
    value, gradient = loss_of(recipe(name), given, torch.float32)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    wanted, wanted_gradient = expected(name, recipe(name), given)
    assert value == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_to_the_step(name: AlgorithmName) -> None:
    given = tokens(9, rows=12)
    whole, whole_gradient = loss_of(recipe(name), given)
    for cuts in ([3], [1, 2, 3], [6, 7], list(range(1, 12))):
        parts = [
            loss_of(
                recipe(name),
                replace(
                    given,
                    **{field: getattr(given, field)[a:b] for field in ("logprobs", "old", "advantages", "weights")},
                ),
            )
            for a, b in zip([0, *cuts], [*cuts, 12], strict=True)
        ]
        assert sum(value for value, _ in parts) == pytest.approx(whole, rel=1e-12)
        np.testing.assert_allclose(np.concatenate([g for _, g in parts]), whole_gradient, rtol=1e-12)


@pytest.mark.parametrize("name", ["grpo", "drgrpo", "dapo", "ppo", "gspo", "distill"])
def test_a_dual_clip_bounds_the_loss_of_what_went_wrong(name: AlgorithmName) -> None:
    dual = made(algorithm(name, clip={"dual": 3.0}))
    plain = recipe(name)
    assert dual.clip == replace(plain.clip, dual=3.0)
    for seed in range(5):
        given = tokens(seed, spread=3.0)
        value, gradient = loss_of(dual, given)
        wanted, wanted_gradient = expected(name, dual, given)
        assert value == pytest.approx(wanted, rel=1e-9)
        np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-9, atol=1e-12)
    runaway = Tokens(logprobs=[[-0.1]], old=[[-5.0]], advantages=[-1.0], weights=[[1.0]], longest_answer=1)
    assert loss_of(dual, runaway)[0] == pytest.approx(3.0)
    assert loss_of(plain, runaway)[0] > 100


def test_the_manifest_clips_as_it_says_and_else_as_published() -> None:
    assert (recipe("dapo").clip.low, recipe("dapo").clip.high) == (0.2, 0.28)
    assert (recipe("gspo").clip.low, recipe("gspo").clip.high) == (3e-4, 4e-4)
    mine = recipe_of(Algorithm.model_validate({"name": "dapo", "clip": {"low": 0.1}}))
    assert (mine.clip.low, mine.clip.high) == (0.1, 0.28)


def test_what_steps_are_divided_by() -> None:
    over = {name: recipe(name).averaging.denominator for name in NAMES}
    assert {name for name in NAMES if over[name] is Denominator.TOKENS} == {
        "dapo",
        "ppo",
        "cispo",
        "m2po",
        "distill",
        "custom",
    }


def test_ratios_are_taken_to_the_step_or_to_sampling_as_the_correction_has_it() -> None:
    for name in NAMES:
        if name != "m2po":
            assert made(algorithm(name, correction={"type": "Truncate"})).ratio_to is RatioTo.STEP_BEGIN
            by_itself = RatioTo.STEP_BEGIN if name in ("ppo", "rloo") else RatioTo.SAMPLED
            assert recipe(name).ratio_to is by_itself
    assert recipe("m2po").ratio_to is RatioTo.SAMPLED
    uncorrected = Algorithm.model_validate({"name": "ppo", "correction": {"type": "None"}})
    assert recipe_of(uncorrected).ratio_to is RatioTo.STEP_BEGIN
