"""Filters one by one and in their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.dataflow.finished_groups import finished
from trimtab.api.data import Filter as FilterSettings
from trimtab.api.data import LengthFilter
from trimtab.api.scalars import Plugin
from trimtab.dataflow.filters import Chain, FilterMisbehaved, Length, Truncated, ZeroAdvantage, make_filter
from trimtab.dataflow.outcomes import GroupOutcome, SampleOutcome
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.trajectory import Finish

STOP, LENGTH, TURNS = Finish.STOP, Finish.LENGTH, Finish.TURNS


class Answering:
    """A filter of the user's that gives one answer and remembers what it was asked."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked: list[GroupOutcome] = []

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        self.asked.append(group)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]


def chosen(custom: object = None, **settings: Any) -> Chain:
    if custom is not None:
        settings["custom"] = Plugin(entrypoint="mine:Choice")
    return make_filter(FilterSettings(**settings), load=lambda plugin: custom)


def test_without_filters_everything_is_kept() -> None:
    group = finished("a", (1.0, 1.0), finishes=(LENGTH, STOP))
    assert chosen().kept(group) == {(0, 0), (1, 0)}
    assert Chain(()).kept(group) == {(0, 0), (1, 0)}


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [((1.0, 1.0, 1.0), set()), ((0.0, 0.0), set()), ((0.5,), set()), ((0.0, 0.0, 1e-9), {0, 1, 2})],
)
def test_groups_without_variance_are_left_out_whole(rewards: tuple[float, ...], kept: set[int]) -> None:
    assert ZeroAdvantage().kept(finished("a", rewards)) == kept


def test_truncated_samples_are_left_out_and_the_rest_of_the_group_stays() -> None:
    assert Truncated().kept(finished("a", (0, 1, 1), finishes=(STOP, LENGTH, TURNS))) == {0, 2}


def test_both_limits_of_the_length_are_allowed() -> None:
    group = finished("a", (0, 1, 0, 1), tokens=(4, 5, 10, 11))
    assert Length(LengthFilter(min_tokens=5, max_tokens=10)).kept(group) == {1, 2}
    assert Length(LengthFilter(min_tokens=5)).kept(group) == {1, 2, 3}
    assert Length(LengthFilter(max_tokens=4)).kept(group) == {0}


def test_filters_apply_in_the_order_of_the_fields_and_see_what_is_left() -> None:
    custom = Answering(frozenset({2, 4}))
    filters = chosen(custom, truncated="Drop", length=LengthFilter(max_tokens=50))
    group = finished("a", (0, 1, 0, 1, 1), finishes=(LENGTH, STOP, STOP, STOP, STOP), tokens=(10, 99, 10, 10, 10))
    assert filters.kept(group) == {(2, 0), (4, 0)}
    assert [sample.index for sample in custom.asked[0].rows] == [2, 3, 4]


def test_a_filter_is_not_asked_about_nothing() -> None:
    custom = Answering(frozenset())
    assert chosen(custom, zero_advantage="Drop").kept(finished("a", (1, 1))) == set()
    assert custom.asked == []


@pytest.mark.parametrize(
    ("rewards", "finishes"),
    [((0, 1, 1), (LENGTH, STOP, STOP)), ((0, 1, 1), (STOP, LENGTH, LENGTH))],
    ids=["equal-rewards-left", "one-sample-left"],
)
def test_a_group_that_later_filters_leave_without_variance_is_dropped_as_well(
    rewards: tuple[float, ...], finishes: tuple[Finish, ...]
) -> None:
    group = finished("a", rewards, finishes=finishes)
    assert chosen(zero_advantage="Drop", truncated="Drop").kept(group) == set()
    left = {index for index, finish in enumerate(finishes) if finish is STOP}
    assert chosen(zero_advantage="Keep", truncated="Drop").kept(group) == {(index, 0) for index in left}


def test_a_group_with_variance_left_is_kept() -> None:
    group = finished("a", (0, 1, 1), finishes=(STOP, LENGTH, STOP))
    assert chosen(zero_advantage="Drop", truncated="Drop").kept(group) == {(0, 0), (2, 0)}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (frozenset({0, 7}), r"kept \[7\], which the group does not have; it was given episodes \[0, 1\]"),
        (frozenset({"0"}), r"kept \['0'\]"),
        ([0, 1], r"answered \[0, 1\]; return a frozenset"),
        (None, "answered None"),
        (KeyError("score"), "raised KeyError: 'score'"),
    ],
)
def test_a_custom_filter_that_misbehaves_is_named_with_what_it_did(answer: Any, reason: str) -> None:
    with pytest.raises(FilterMisbehaved, match=f"mine:Choice on prompt 'a' of policy 'solver' {reason}"):
        chosen(Answering(answer)).kept(finished("a", (0, 1)))


def test_a_custom_filter_may_not_bring_back_what_an_earlier_one_left_out() -> None:
    with pytest.raises(FilterMisbehaved, match=r"kept \[0\]"):
        chosen(Answering({0, 1}), truncated="Drop").kept(finished("a", (0, 1), finishes=(LENGTH, STOP)))


def test_a_custom_filter_without_its_method_is_refused() -> None:
    with pytest.raises(JobMisconfigured, match="mine:Choice has no method 'kept'"):
        chosen(object())


def forest(*episodes: tuple[SampleOutcome, ...]) -> GroupOutcome:
    rows = tuple(
        replace(row, index=index, part=part) for index, own in enumerate(episodes) for part, row in enumerate(own)
    )
    return GroupOutcome(policy="solver", role="solver", prompt_id="a", rows=rows)


def row(reward: float, *, tokens: int = 10, finish: Finish = STOP, **parts: float) -> SampleOutcome:
    one = finished("a", (reward,), finishes=(finish,), tokens=(tokens,)).rows[0]
    return replace(one, reward_parts=parts)


def test_an_episode_is_judged_as_a_whole_however_many_rows_it_has() -> None:
    whole = forest((row(1.0, tokens=30),), (row(0.0, tokens=10, finish=LENGTH),))
    cut = forest((row(1.0, tokens=10), row(1.0, tokens=20)), (row(0.0, tokens=4), row(0.0, tokens=6, finish=LENGTH)))
    for one in (ZeroAdvantage(), Truncated(), Length(LengthFilter(min_tokens=25)), Length(LengthFilter(max_tokens=15))):
        assert one.kept(whole) == one.kept(cut)


def test_rewards_are_those_of_the_episodes() -> None:
    group = forest((row(0.0), row(1.0)), (row(0.5),))
    assert group.rewards == (0.5, 0.5)
    assert group.is_zero_variance


class ByParts:
    """Keeps single rows by what their reward is made of, and an episode by the mean of it."""

    def kept(self, group: GroupOutcome) -> frozenset[int | tuple[int, int]]:
        well_formed = {episode.index for episode in group.episodes if episode.reward_parts.get("format", 0.0) > 0.5}
        return frozenset(well_formed) | {
            (one.index, one.part) for one in group.rows if one.reward_parts.get("answer") == 1.0
        }


def test_a_filter_sees_what_rewards_are_made_of_and_keeps_episodes_or_single_rows() -> None:
    group = forest(
        (row(1.0, format=1.0), row(0.0, format=0.5)),
        (row(0.0, answer=0.0), row(1.0, answer=1.0, format=0.0), row(0.0)),
        (row(0.0, format=0.0),),
    )
    assert chosen(ByParts()).kept(group) == {(0, 0), (0, 1), (1, 1)}


def test_a_row_that_the_group_does_not_have_is_no_answer() -> None:
    with pytest.raises(FilterMisbehaved, match=r"kept \[\(0, 1\)\], which the group does not have"):
        chosen(Answering(frozenset({(0, 1)}))).kept(forest((row(1.0),), (row(0.0),)))
