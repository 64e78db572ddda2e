"""Every algorithm learns secret words from rewards alone, and what it learns comes from the advantages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.learning.known_optimum import KnownTask
from tests.support.learning.learning_run import ALGORITHMS, learn, shuffled, word_setting
from trimtab.api.algorithm import AlgorithmName
from trimtab.trainer.batch import Row

pytestmark = pytest.mark.slow

SEED = 1
REGRET = 0.12
"""Of a reward of 1. One wrong letter of all twelve places costs 0.083, the bonus for entropy 0.01."""
CHANCE = 0.2
"""The start has 0.12."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_reaches_the_best_reward(name: AlgorithmName, word_task: KnownTask, word_model: Path) -> None:
    run = learn(word_setting(name), word_task, model_path=word_model, seed=SEED)
    assert run.rewards[0] < CHANCE
    assert run.last_reward > word_task.best - REGRET


def test_with_the_advantages_of_others_nothing_is_learned(word_task: KnownTask, word_model: Path) -> None:
    run = learn(word_setting("grpo"), word_task, model_path=word_model, seed=SEED, reshape=shuffled(SEED))
    assert max(run.rewards.values()) < CHANCE


def test_without_advantages_nothing_moves(word_task: KnownTask, word_model: Path) -> None:
    def worthless(rows: list[Row]) -> list[Row]:
        return [replace(row, advantages=np.zeros_like(row.advantages)) for row in rows]

    setting = replace(word_setting("grpo"), algorithm={"name": "grpo"}, steps=3)
    run = learn(setting, word_task, model_path=word_model, seed=SEED, reshape=worthless)
    assert torch.equal(run.end, run.begin)


def test_the_same_seed_gives_the_same_run(word_task: KnownTask, word_model: Path) -> None:
    setting = replace(word_setting("m2po", staleness=2), steps=10)
    one, other = (learn(setting, word_task, model_path=word_model, seed=SEED) for _ in range(2))
    assert torch.equal(one.end, other.end)
    assert not torch.equal(one.end, one.begin)
