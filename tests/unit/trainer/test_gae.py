"""Advantages from a critic's values, against the sum that defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.api.algorithm import Credit
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group
from trimtab.fabric.wire.trajectory import TurnReward
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.gae import gae, token_rewards
from trimtab.trainer.row_rewards import RowRewards


def by_definition(rewards: list[float], values: list[float], *, discount: float, decay: float) -> list[float]:
    """The weighted sum of all later surprises, for each token anew."""
    ended = [*values, 0.0]
    surprises = [reward + discount * ended[t + 1] - ended[t] for t, reward in enumerate(rewards)]
    return [
        sum((discount * decay) ** (later - t) * surprises[later] for later in range(t, len(rewards)))
        for t in range(len(rewards))
    ]


@pytest.mark.parametrize("length", [0, 1, 2, 7, 127, 128, 129, 600])
@pytest.mark.parametrize(
    ("discount", "decay"), [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (1.0, 0.0), (0.0, 0.5), (0.5, 0.5)]
)
def test_it_is_the_sum_of_what_came_unexpected(length: int, discount: float, decay: float) -> None:
    chance = np.random.default_rng(length)
    rewards, values = chance.normal(0, 3, length), chance.normal(0, 3, length)
    made = gae(rewards, values, discount=discount, decay=decay)
    wanted = by_definition(rewards.tolist(), values.tolist(), discount=discount, decay=decay)
    assert made.dtype == np.float64
    np.testing.assert_allclose(made, wanted, rtol=1e-9, atol=1e-9)


def test_a_critic_that_knows_the_end_leaves_nothing_to_learn() -> None:
    assert gae(np.array([0.0, 0.0, 2.0]), np.full(3, 2.0), discount=1.0, decay=0.95).tolist() == [0.0, 0.0, 0.0]


def row(reward: float, tokens: int, *, turns: tuple[TurnReward, ...] = (), **columns: Any) -> RowRewards:
    return RowRewards(
        reward=reward,
        episode=Episode(reward=reward, trained_tokens=tokens, turns=turns),
        trained_tokens=tokens,
        turns=turns,
        columns={name: np.asarray(values, dtype=np.float32) for name, values in columns.items()},
    )


def test_the_outcome_comes_with_the_last_token() -> None:
    assert token_rewards(row(3.0, 4), Credit()).tolist() == [0, 0, 0, 3]
    assert token_rewards(row(3.0, 0), Credit()).tolist() == []


def test_what_a_turn_earned_comes_with_its_last_token() -> None:
    turns = (TurnReward(0, 2, 0.5), TurnReward(1, 1, -1.0), TurnReward(3, 3, 2.0))
    credit = Credit(type="Turn", outcome_weight=0.5)
    assert token_rewards(row(3.0, 6, turns=turns), credit).tolist() == [0, 0.5, -1.0, 0, 0, 2.0 + 1.5]


def policy(**algorithm: Any) -> Policy:
    critic = {"stage": "values", "discount": 0.9, "lambda": 0.8}
    return Policy.model_validate(
        {
            "name": "actor",
            "model": {"uri": "m"},
            "sampling": {"maxTokens": 8},
            "algorithm": {"name": "ppo", "critic": critic, **algorithm},
        }
    )


def test_a_policy_with_a_critic_compares_with_its_values_and_not_with_the_group() -> None:
    one = row(1.0, 3, values=[0.5, 0.25, -0.5])
    group = Group(group_id="g", prompt_id="p", episodes=(one.episode, Episode(reward=-7.0, trained_tokens=2)))
    rule = AdvantageRule.of(policy())
    assert rule.columns == ("values",)
    wanted = by_definition([0.0, 0.0, 1.0], [0.5, 0.25, -0.5], discount=0.9, decay=0.8)
    np.testing.assert_allclose(rule.group(group).of(one), wanted, rtol=1e-6)


def test_the_outcome_of_an_overlong_answer_is_lowered_first() -> None:
    one = row(1.0, 7, values=np.zeros(7))
    group = Group(group_id="g", prompt_id="p", episodes=(one.episode,))
    rule = AdvantageRule.of(policy(overlong={"bufferTokens": 4, "penalty": 2.0, "maskTruncated": False}))
    assert rule.group(group).of(one)[-1] == pytest.approx(1.0 - 2.0 * 3 / 4)


def test_a_critic_learns_from_the_same_advantages() -> None:
    one = row(1.0, 3, values=[0.5, 0.25, -0.5])
    group = Group(group_id="g", prompt_id="p", episodes=(one.episode,))
    actor, critic = AdvantageRule.of(policy()), AdvantageRule.of(policy(name="critic"))
    np.testing.assert_array_equal(actor.group(group).of(one), critic.group(group).of(one))
