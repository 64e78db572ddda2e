"""The losses of distillation and of critics, against references of their own, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.trainer.loss_reference import bounded, clipped
from trimtab.api.algorithm import Algorithm
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.critic import value_losses
from trimtab.trainer.losses.registry import recipe_of
from trimtab.trainer.losses.tokens import LossTokens
from trimtab.trainer.row_rewards import RowRewards


def student(**distill: Any) -> Policy:
    algorithm = {"name": "distill", "distill": {"stage": "teacher", **distill}}
    return Policy.model_validate({"name": "student", "model": {"uri": "m"}, "algorithm": algorithm})


def row(sampled: list[float], teacher: list[float], *, reward: float = 0.0) -> RowRewards:
    return RowRewards(
        reward=reward,
        episode=Episode(reward=reward, trained_tokens=len(sampled)),
        trained_tokens=len(sampled),
        logprobs=np.array(sampled, dtype=np.float32),
        columns={"teacher": np.array(teacher, dtype=np.float32)},
    )


def group(*rewards: float) -> Group:
    return Group(
        group_id="g", prompt_id="p", episodes=tuple(Episode(reward=reward, trained_tokens=2) for reward in rewards)
    )


def test_a_token_is_credited_with_how_much_likelier_the_teacher_holds_it() -> None:
    rule = AdvantageRule.of(student())
    assert rule.columns == ("teacher",)
    made = rule.group(group(1.0, 0.0)).of(row([-1.0, -2.0, -0.5], [-0.25, -5.0, -0.5], reward=1.0))
    np.testing.assert_allclose(made, [0.75, -3.0, 0.0], rtol=1e-6)


def test_rewards_count_as_the_manifest_weighs_them() -> None:
    one = row([-1.0, -2.0], [-0.5, -3.0], reward=3.0)
    compared = AdvantageRule.of(
        Policy.model_validate({"name": "s", "model": {"uri": "m"}, "algorithm": {"name": "grpo"}})
    )
    by_reward = compared.group(group(3.0, 1.0)).of(one)
    assert by_reward[0] > 0.5
    made = AdvantageRule.of(student(rewardWeight=0.5)).group(group(3.0, 1.0)).of(one)
    np.testing.assert_allclose(made, np.array([0.5, -1.0]) + 0.5 * by_reward, rtol=1e-6)


def test_what_a_teacher_holds_for_impossible_does_not_outweigh_a_step() -> None:
    made = AdvantageRule.of(student()).group(group(0.0)).of(row([-0.1, -0.1], [-1e6, -0.1]))
    np.testing.assert_allclose(made, [-20.0, 0.0])


@pytest.mark.parametrize("seed", range(6))
def test_the_update_is_the_clipped_gradient_of_the_divergence(seed: int) -> None:
    """From log-probabilities to the gradient of a step, with nothing of ours in between."""
    chance = np.random.default_rng(seed)
    sampled, teacher = (-chance.exponential(1.0, 9).astype(np.float32) for _ in range(2))
    now = sampled.astype(np.float64) + chance.normal(0, 0.3, 9)
    total, slopes = 0.0, []
    for token in range(9):
        ratio, slope = bounded(float(now[token]) - float(sampled[token]))
        advantage = float(teacher[token]) - float(sampled[token])
        loss, gradient = clipped(ratio, slope, advantage, low=0.2, high=0.2, dual=None)
        total += loss
        slopes.append(gradient)
    recipe = recipe_of(student().algorithm)
    assert recipe.advantages is not None
    exact = RowRewards(
        reward=0.0,
        episode=Episode(reward=0.0, trained_tokens=9),
        trained_tokens=9,
        logprobs=sampled,
        columns={"teacher": teacher},
    )
    tokens = LossTokens(
        logprobs=torch.tensor(now, requires_grad=True),
        old_logprobs=torch.tensor(sampled, dtype=torch.float64),
        advantages=torch.tensor(recipe.advantages(exact, np.zeros(9, dtype=np.float32))),
        weights=torch.ones(9, dtype=torch.float64),
        sequences=torch.tensor([0] * 4 + [1] * 5),
        answer_lengths=torch.tensor([4, 5]),
        longest_answer=8,
    )
    value = recipe.averaging.total(tokens, recipe.token_losses(tokens, recipe.clip))
    value.backward()
    assert tokens.logprobs.grad is not None
    assert value.item() == pytest.approx(total, rel=1e-9)
    np.testing.assert_allclose(tokens.logprobs.grad.numpy(), slopes, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_value_is_drawn_to_its_return_and_no_further_than_the_clip(seed: int) -> None:
    chance = np.random.default_rng(seed)
    old, values, returns = (chance.normal(0, 0.4, 40) for _ in range(3))
    low, high = 0.2, 0.3
    wanted, slopes = [], []
    for value, before, come in zip(values, old, returns, strict=True):
        bounded_value = min(max(value, before - low), before + high)
        plain, held = (value - come) ** 2 / 2, (bounded_value - come) ** 2 / 2
        wanted.append(max(plain, held))
        slopes.append(value - come if plain >= held else 0.0)
    given = torch.tensor(values, requires_grad=True)
    losses = value_losses(
        given, old_values=torch.tensor(old), returns=torch.tensor(returns), clip=ClipRange(low=low, high=high)
    )
    losses.sum().backward()
    assert given.grad is not None
    np.testing.assert_allclose(losses.detach().numpy(), wanted, rtol=1e-9)
    free = np.abs(np.array(wanted)) > 0
    inside = np.isclose(np.clip(values, old - low, old + high), values)
    np.testing.assert_allclose(given.grad.numpy()[free & ~inside], np.array(slopes)[free & ~inside], atol=1e-12)
    np.testing.assert_allclose(given.grad.numpy()[inside], (values - returns)[inside], atol=1e-12)


def test_a_critic_takes_its_return_from_the_advantage_and_the_value_that_it_was_made_with() -> None:
    recipe = recipe_of(Algorithm.model_validate({"name": "critic", "critic": {"stage": "values"}}))
    assert recipe.value_head
    assert recipe.columns == ("values",)
    tokens = LossTokens(
        logprobs=torch.zeros(2),
        old_logprobs=torch.zeros(2),
        advantages=torch.tensor([1.0, -1.0]),
        weights=torch.ones(2),
        sequences=torch.tensor([0, 0]),
        answer_lengths=torch.tensor([2]),
        longest_answer=8,
        values=torch.tensor([0.5, 0.5]),
        columns={"values": torch.tensor([0.5, 0.4])},
    )
    np.testing.assert_allclose(recipe.token_losses(tokens, recipe.clip), [0.5, (0.5 + 0.6) ** 2 / 2], rtol=1e-6)
