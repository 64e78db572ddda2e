"""Credit per turn against a reference that follows the definition word by word."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group
from trimtab.fabric.wire.trajectory import TurnReward
from trimtab.trainer.advantages import AdvantageRule, TurnsUnknown
from trimtab.trainer.row_rewards import RowRewards

rewards = st.floats(-10, 10, allow_nan=False).map(lambda value: round(value, 3))
told_turns = st.lists(st.tuples(st.integers(1, 5), rewards), min_size=1, max_size=5)
told_groups = st.lists(st.tuples(rewards, told_turns), min_size=1, max_size=5)
ALGORITHMS = ("grpo", "drgrpo", "dapo", "ppo", "gspo", "cispo", "rloo", "m2po")


def rule(name: str, **credit: Any) -> AdvantageRule:
    algorithm = {"name": name, "credit": {"type": "Turn", **credit}}
    return AdvantageRule.of(
        Policy.model_validate(
            {"name": "solver", "model": {"uri": "m"}, "sampling": {"maxTokens": 100}, "algorithm": algorithm}
        )
    )


def group(*episodes: tuple[float, list[tuple[int, float]]], numbers: int = 1) -> Group:
    """`numbers` apart, as when turns of the role were not trained: places count, not numbers."""
    return Group(
        group_id="g",
        prompt_id="p",
        episodes=tuple(
            Episode(
                reward=reward,
                trained_tokens=sum(tokens for tokens, _ in turns),
                turns=tuple(TurnReward(numbers * place, *turn) for place, turn in enumerate(turns)),
            )
            for reward, turns in episodes
        ),
    )


def whole(episode: Episode) -> RowRewards:
    return RowRewards(
        reward=episode.reward, episode=episode, trained_tokens=episode.trained_tokens, turns=episode.turns
    )


def by_definition(
    name: str, episodes: list[tuple[float, list[tuple[int, float]]]], *, discount: float, weight: float
) -> list[list[float]]:
    """Of each token of each episode, with no algebra: sums of powers, means and deviations of lists."""

    def led_to(reward: float, turns: list[tuple[int, float]], place: int) -> float:
        later = sum(discount ** (k - place) * turns[k][1] for k in range(place, len(turns)))
        return later + weight * discount ** (len(turns) - 1 - place) * reward

    found = []
    for number, (reward, turns) in enumerate(episodes):
        tokens: list[float] = []
        for place, (length, _) in enumerate(turns):
            mine = led_to(reward, turns, place)
            others = [
                led_to(their_reward, their_turns, place)
                for other, (their_reward, their_turns) in enumerate(episodes)
                if other != number and len(their_turns) > place
            ]
            if not others:
                others = [
                    led_to(their_reward, their_turns, k)
                    for other, (their_reward, their_turns) in enumerate(episodes)
                    for k in range(len(their_turns))
                    if (other, k) != (number, place)
                ]
            if not others:
                tokens += [mine] * length
                continue
            everyone = [*others, mine]
            advantage = mine - statistics.fmean(others if name == "rloo" else everyone)
            if name not in ("rloo", "drgrpo"):
                advantage /= statistics.stdev(everyone) + 1e-6
            tokens += [advantage] * length
        found.append(tokens)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=40, deadline=None)
@given(
    told=told_groups,
    discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    numbers=st.integers(1, 3),
)
def test_every_token_has_what_the_definition_says(
    name: str, told: list[tuple[float, list[tuple[int, float]]]], discount: float, weight: float, numbers: int
) -> None:
    made = group(*told, numbers=numbers)
    advantages = rule(name, discount=discount, outcomeWeight=weight).group(made)
    expected = by_definition(name, told, discount=discount, weight=weight)
    for episode, wanted in zip(made.episodes, expected, strict=True):
        # Equal returns leave nothing but rounding, which the deviation's epsilon of 1e-6 makes a millionth of.
        np.testing.assert_allclose(advantages.of(whole(episode)), wanted, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(told=told_groups, seed=st.integers(0, 1000))
def test_rows_have_the_advantages_of_the_whole(told: list[tuple[float, list[tuple[int, float]]]], seed: int) -> None:
    """However turns are dealt to rows."""
    chance = np.random.default_rng(seed)
    made = group(*told)
    advantages = rule("grpo", discount=0.7).group(made)
    for episode in made.episodes:
        together = advantages.of(whole(episode)).tolist()
        of_turn = {}
        for turn in episode.turns:
            of_turn[turn.number], together = together[: turn.tokens], together[turn.tokens :]
        row_of_turn = chance.integers(0, 3, len(episode.turns))
        for row in range(3):
            turns = [turn for turn, into in zip(episode.turns, row_of_turn, strict=True) if into == row]
            part = RowRewards(
                reward=episode.reward,
                episode=episode,
                trained_tokens=sum(turn.tokens for turn in turns),
                turns=turns,
            )
            assert advantages.of(part).tolist() == [value for turn in turns for value in of_turn[turn.number]]


def test_a_turn_is_blamed_for_what_it_did_and_no_other() -> None:
    """Both end the same; what was said first was right in one and wrong in the other."""
    told = group((0.0, [(2, 1.0), (3, 0.0)]), (0.0, [(2, 0.0), (3, 0.0)]))
    advantages = rule("drgrpo", discount=0.0).group(told)
    assert advantages.of(whole(told.episodes[0])).tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert advantages.of(whole(told.episodes[1])).tolist() == [-0.5, -0.5, 0.0, 0.0, 0.0]


def test_without_turn_rewards_the_outcome_alone_is_compared() -> None:
    told = group((1.0, [(1, 0.0), (1, 0.0)]), (0.0, [(1, 0.0), (1, 0.0)]))
    by_outcome = AdvantageRule(longest_answer=8).group(told).of(whole(told.episodes[0]))
    np.testing.assert_allclose(rule("grpo").group(told).of(whole(told.episodes[0])), by_outcome)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ((), "0 of its 2 trained tokens"),
        ((TurnReward(0, 1, 1.0),), "that its episode does not have"),
        ((TurnReward(4, 2, 1.0),), "that its episode does not have"),
    ],
    ids=["none", "another length", "another turn"],
)
def test_a_row_that_does_not_say_what_its_episode_says_is_refused(turns: tuple[TurnReward, ...], reason: str) -> None:
    told = group((1.0, [(2, 1.0)]))
    row = RowRewards(reward=1.0, episode=told.episodes[0], trained_tokens=2, turns=turns)
    with pytest.raises(TurnsUnknown, match=reason):
        rule("grpo").group(told).of(row)


def test_what_a_turn_earned_is_the_word_of_the_lease() -> None:
    """A stage may have replaced what the row says."""
    told = group((0.0, [(2, 1.0)]), (0.0, [(2, 0.0)]))
    row = RowRewards(reward=0.0, episode=told.episodes[0], trained_tokens=2, turns=(TurnReward(0, 2, 9.0),))
    assert rule("drgrpo").group(told).of(row).tolist() == [0.5, 0.5]
