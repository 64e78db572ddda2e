"""Optima that can be checked by hand, or by trying to do better."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support.learning.known_optimum import (
    END,
    answer_probabilities,
    distance,
    gibbs,
    lottery,
    make_model,
    mode_covering,
    words,
)


def kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one * (one / other).log()).sum()


@pytest.fixture
def reference() -> torch.Tensor:
    return torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


@pytest.fixture
def rewards() -> torch.Tensor:
    return torch.tensor([0.1, 0.9, 0.2, 1.0], dtype=torch.float64)


def test_a_coin_that_is_twice_as_likely_for_every_step_of_the_coefficient() -> None:
    even = torch.tensor([0.5, 0.5], dtype=torch.float64)
    rewards = torch.log(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert gibbs(even, rewards, coefficient=1.0).tolist() == pytest.approx([1 / 3, 2 / 3])
    assert gibbs(even, rewards, coefficient=0.5).tolist() == pytest.approx([1 / 5, 4 / 5])


@pytest.mark.parametrize("coefficient", [0.05, 0.2, 5.0])
def test_no_policy_nearby_does_better(reference: torch.Tensor, rewards: torch.Tensor, coefficient: float) -> None:
    chance = torch.Generator().manual_seed(0)
    tilted = gibbs(reference, rewards, coefficient=coefficient)
    covering = mode_covering(reference, rewards, coefficient=coefficient)
    assert covering.sum().item() == pytest.approx(1.0)
    for _ in range(50):
        other = torch.softmax(tilted.log() + 0.1 * torch.randn(4, generator=chance, dtype=torch.float64), dim=0)
        assert other @ rewards - coefficient * kl(other, reference) < tilted @ rewards - coefficient * kl(
            tilted, reference
        )
        other = torch.softmax(covering.log() + 0.1 * torch.randn(4, generator=chance, dtype=torch.float64), dim=0)
        assert other @ rewards - coefficient * kl(reference, other) < covering @ rewards - coefficient * kl(
            reference, covering
        )


def test_every_answer_is_counted_once_and_their_probabilities_add_up(tmp_path: Path) -> None:
    make_model(tmp_path, seed=0)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    task = words(seed=0)
    assert len(set(task.answers)) == len(task.answers) == 1 + 7 + 7 * 7 * 8
    probabilities = answer_probabilities(model, task)
    assert probabilities.sum(dim=1).tolist() == pytest.approx([1.0] * len(task.prompts))
    assert 0.0 < task.expected_reward(probabilities) < 0.5


def test_the_best_answer_is_the_secret_word_and_its_end() -> None:
    task = words(seed=3)
    assert task.best == 1.0
    for row in task.reward_table:
        best = [answer for answer, worth in zip(task.answers, row.tolist(), strict=True) if worth == 1.0]
        assert len(best) == 1
        assert best[0][-1] == END
        assert END not in best[0][:-1]


def test_the_best_of_a_lottery_is_the_mean_of_its_largest_prizes() -> None:
    task = lottery(seed=0)
    assert task.best == pytest.approx(sum(max(prizes.values()) for prizes in task.rewards) / len(task.rewards))


def test_distance_is_that_of_the_worst_prompt() -> None:
    one = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    other = torch.tensor([[1.0, 0.0], [0.2, 0.8]])
    assert distance(one, other) == pytest.approx(0.3)
