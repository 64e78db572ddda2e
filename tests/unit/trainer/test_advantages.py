"""From rewards to advantages: leave-one-out, overlong answers, and what each algorithm was published with."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from trimtab.api.algorithm import Overlong, Schedule
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group
from trimtab.trainer.advantages import AdvantageRule, overlong_penalty
from trimtab.trainer.baseline import GroupBaseline
from trimtab.trainer.learner import rate_factor
from trimtab.trainer.row_rewards import RowRewards


def group(*rewards: float, tokens: tuple[int, ...] = ()) -> Group:
    counts = tokens or (1,) * len(rewards)
    episodes = (Episode(reward=reward, trained_tokens=count) for reward, count in zip(rewards, counts, strict=True))
    return Group(group_id="g", prompt_id="p", episodes=tuple(episodes))


def advantage(rule: AdvantageRule, group: Group, number: int) -> float:
    """Of each token of the episode, as one row."""
    episode = group.episodes[number]
    row = RowRewards(reward=episode.reward, episode=episode, trained_tokens=episode.trained_tokens)
    (found,) = set(rule.group(group).of(row).tolist())
    return float(found)


def rule(**algorithm: Any) -> AdvantageRule:
    return AdvantageRule.of(
        Policy.model_validate(
            {"name": "solver", "model": {"uri": "m"}, "sampling": {"maxTokens": 100}, "algorithm": algorithm}
        )
    )


def test_leaving_one_out_compares_with_the_others() -> None:
    rewards = (0.0, 1.0, 1.0, 0.5)
    baseline = GroupBaseline(rewards, normalize=False, leave_one_out=True)
    for number, reward in enumerate(rewards):
        others = [other for place, other in enumerate(rewards) if place != number]
        assert baseline.advantage(reward) == pytest.approx(reward - statistics.mean(others))


@pytest.mark.parametrize(("tokens", "taken"), [(0, 0.0), (80, 0.0), (90, 0.25), (100, 0.5), (130, 0.5)])
def test_the_penalty_rises_through_the_buffer_zone(tokens: int, taken: float) -> None:
    overlong = Overlong(buffer_tokens=20, penalty=0.5)
    assert overlong_penalty(tokens, longest_answer=100, overlong=overlong) == pytest.approx(taken)


def test_without_a_zone_nothing_is_taken() -> None:
    assert overlong_penalty(100, longest_answer=100, overlong=Overlong(buffer_tokens=0)) == 0.0


def test_a_long_answer_is_compared_by_its_lowered_reward() -> None:
    shaped = rule(name="drgrpo", overlong={"bufferTokens": 50, "penalty": 1.0})
    answers = group(1.0, 1.0, tokens=(40, 100))
    assert advantage(shaped, answers, 0) == pytest.approx(0.5)
    assert advantage(shaped, answers, 1) == pytest.approx(-0.5)
    assert advantage(rule(name="drgrpo"), answers, 1) == 0.0


def test_truncated_answers_are_masked_where_the_manifest_treats_overlong_ones() -> None:
    assert rule(name="dapo", overlong={}).masks_truncated
    assert not rule(name="dapo", overlong={"maskTruncated": False}).masks_truncated
    assert not rule(name="dapo").masks_truncated


def test_algorithms_compare_as_they_were_published_unless_told() -> None:
    deviation = statistics.stdev((0.0, 1.0, 1.0))
    first = group(0.0, 1.0, 1.0)
    assert advantage(rule(name="grpo"), first, 0) == pytest.approx(-2 / 3 / deviation, rel=1e-4)
    assert advantage(rule(name="drgrpo"), first, 0) == pytest.approx(-2 / 3)
    assert advantage(rule(name="rloo"), first, 0) == pytest.approx(-1.0)
    assert advantage(rule(name="grpo", normalizeGroupRewards=False), first, 0) == pytest.approx(-2 / 3)


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
