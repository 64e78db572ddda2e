"""Group advantages and the learning rate over steps."""

from __future__ import annotations

import math
import statistics

import pytest

from trimtab.api.algorithm import Schedule
from trimtab.trainer.advantages.group import GroupBaseline
from trimtab.trainer.schedule import rate_factor


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (0.0, 0.0, 1.0, 1.0), (0.1, 0.5, 0.9, 0.2), (-3.0, 5.0, 5.0)])
def test_advantages_are_standardised_rewards(rewards: tuple[float, ...]) -> None:
    mean, deviation = statistics.mean(rewards), statistics.stdev(rewards)
    for reward in rewards:
        assert GroupBaseline(rewards, normalize=True).advantage(reward) == pytest.approx(
            (reward - mean) / deviation, rel=1e-5
        )
        assert GroupBaseline(rewards, normalize=False).advantage(reward) == pytest.approx(reward - mean)
    assert sum(GroupBaseline(rewards, normalize=True).advantage(r) for r in rewards) == pytest.approx(0.0, abs=1e-9)


def test_equal_rewards_teach_nothing() -> None:
    assert GroupBaseline((0.3, 0.3, 0.3), normalize=True).advantage(0.3) == pytest.approx(0.0, abs=1e-9)


def test_a_group_of_one_keeps_its_reward() -> None:
    assert GroupBaseline((0.7,), normalize=True).advantage(0.7) == 0.7


def test_large_rewards_do_not_lose_their_difference() -> None:
    assert GroupBaseline((1e15 + 1, 1e15), normalize=False).advantage(1e15 + 1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (Schedule(), 0, 1.0),
        (Schedule(), 10**6, 1.0),
        (Schedule(warmup_steps=4), 0, 0.25),
        (Schedule(warmup_steps=4), 3, 1.0),
        (Schedule(warmup_steps=4), 4, 1.0),
        (Schedule(type="Linear", decay_steps=10), 0, 1.0),
        (Schedule(type="Linear", decay_steps=10), 5, 0.5),
        (Schedule(type="Linear", decay_steps=10), 10, 0.0),
        (Schedule(type="Linear", decay_steps=10, final_fraction=0.1), 1000, 0.1),
        (Schedule(type="Linear", warmup_steps=2, decay_steps=10, final_fraction=0.5), 7, 0.75),
        (Schedule(type="Cosine", decay_steps=10), 5, 0.5),
        (Schedule(type="Cosine", decay_steps=10), 10, 0.0),
        (Schedule(type="Cosine", decay_steps=4), 1, (1 + math.cos(math.pi / 4)) / 2),
    ],
)
def test_rate_factor(schedule: Schedule, step: int, expected: float) -> None:
    assert rate_factor(schedule, step) == pytest.approx(expected, abs=1e-12)
