"""What each turn earned teaches where the outcome is silent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.learning.known_optimum import make_model
from tests.support.learning.learning_run import ALGORITHMS
from tests.support.learning.turn_task import TurnSetting, learn_quiz
from trimtab.api.algorithm import AlgorithmName

SEEDS = range(10)
STUDENT = 2.262
"""Of nine degrees of freedom: 95 in 100 intervals hold the mean."""
CHANCE = 1 / 8
TURN = {"credit": {"type": "Turn"}}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quiz")
    make_model(folder, seed=5)
    return folder


def interval(values: Sequence[float]) -> tuple[float, float]:
    mean, half = statistics.fmean(values), STUDENT * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def last(shares: Sequence[float]) -> float:
    return statistics.fmean(shares[-5:])


def test_turns_are_learned_from_what_they_earned(model: Path) -> None:
    """A small one of what follows; without credit for turns it stays at chance."""
    setting = TurnSetting(algorithm={"name": "grpo", **TURN}, steps=30, groups=2)
    assert last(learn_quiz(setting, model_path=model, seed=0)) > 0.7


@pytest.mark.slow
def test_only_credit_for_turns_learns_the_quiz(model: Path) -> None:
    by_turn, by_outcome = (
        interval(
            [
                last(learn_quiz(TurnSetting(algorithm={"name": "grpo", **credit}), model_path=model, seed=seed))
                for seed in SEEDS
            ]
        )
        for credit in (TURN, {})
    )
    assert by_turn[0] > 0.9
    assert by_outcome[1] < 2 * CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_from_turns(name: AlgorithmName, model: Path) -> None:
    setting = TurnSetting(algorithm={"name": name, **TURN})
    assert last(learn_quiz(setting, model_path=model, seed=1)) > 0.85
