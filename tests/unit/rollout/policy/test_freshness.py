"""What a worker knows of versions: how far behind it is, how fast they come, and what it may run."""

from __future__ import annotations

import pytest

from trimtab.rollout.policy.freshness import Announcements, Freshness, MovingAverage, VersionLine, allowance
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.weights.store.position import Position


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def at(version: int) -> Position:
    return Position(epoch=1, version=version)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def announced(clock: Clock, *versions: tuple[float, int]) -> Announcements:
    """Versions with the time that each took."""
    announcements = Announcements(clock=clock)
    for seconds, version in versions:
        clock.now += seconds
        announcements.note(version)
    return announcements


def test_an_average_begins_with_its_first_sample_and_follows_the_latest() -> None:
    average = MovingAverage()
    assert average.value is None
    average.add(10.0)
    assert average.value == 10.0
    for _ in range(30):
        average.add(2.0)
    assert average.value == pytest.approx(2.0, abs=0.02)


def test_many_samples_at_once_weigh_as_much_as_one_by_one() -> None:
    at_once, one_by_one = MovingAverage(), MovingAverage()
    for average in (at_once, one_by_one):
        average.add(1.0)
    at_once.add(5.0, times=3)
    for _ in range(3):
        one_by_one.add(5.0)
    assert at_once.value == pytest.approx(one_by_one.value)


def test_the_rhythm_of_versions_is_unknown_until_two_were_seen(clock: Clock) -> None:
    announcements = announced(clock, (1.0, 7))
    assert (announcements.newest, announcements.seconds_between) == (7, None)
    clock.now += 4.0
    announcements.note(8)
    assert announcements.seconds_between == pytest.approx(4.0)


def test_versions_that_were_missed_count_each(clock: Clock) -> None:
    assert announced(clock, (1.0, 7), (12.0, 11)).seconds_between == pytest.approx(3.0)


def test_an_overdue_version_counts_with_the_time_it_has_taken(clock: Clock) -> None:
    announcements = announced(clock, (1.0, 1), (2.0, 2), (2.0, 3))
    assert announcements.seconds_between == pytest.approx(2.0)
    clock.now += 30.0
    assert announcements.seconds_between == pytest.approx(30.0)


def test_a_restarted_trainer_that_goes_back_does_not_disturb_the_rhythm(clock: Clock) -> None:
    announcements = announced(clock, (1.0, 8), (2.0, 9), (500.0, 5), (2.0, 6))
    assert announcements.newest == 6
    assert announcements.seconds_between == pytest.approx(2.0)


def test_the_policy_that_is_furthest_behind_decides(clock: Clock) -> None:
    critic = VersionGate(at(1))
    lines = {
        "solver": VersionLine(served=VersionGate(at(6)), announcements=announced(clock, (1.0, 7))),
        "critic": VersionLine(served=critic, announcements=announced(clock, (1.0, 5))),
        "back": VersionLine(served=VersionGate(at(9)), announcements=announced(clock, (1.0, 4))),
    }
    freshness = Freshness(lines, max_staleness=5)
    assert freshness.lag == 4
    assert freshness.allowance(12) == 8
    critic.settle(at(5))
    assert freshness.lag == 1
    assert freshness.allowance(12) == 12


def test_groups_that_take_many_versions_make_for_fewer_tasks(clock: Clock) -> None:
    fast = VersionLine(served=VersionGate(at(3)), announcements=announced(clock, (1.0, 2), (2.0, 3)))
    slow = VersionLine(served=VersionGate(at(3)), announcements=announced(clock, (0.0, 2), (0.5, 3)))
    freshness = Freshness({"fast": fast, "slow": slow}, max_staleness=3)
    assert freshness.versions_per_group == 0.0
    assert freshness.allowance(8) == 8
    freshness.group_took(4.0)
    assert freshness.versions_per_group == pytest.approx(8.0)
    assert freshness.allowance(8) == 4


def test_a_minimum_is_asked_only_of_policies_that_are_served_here(clock: Clock) -> None:
    line = VersionLine(served=VersionGate(at(3)), announcements=announced(clock, (0.0, 3)))
    freshness = Freshness({"solver": line}, max_staleness=1)
    assert freshness.too_old_for({}) == {}
    assert freshness.too_old_for({"solver": 3, "elsewhere": 99}) == {}
    assert freshness.too_old_for({"solver": 4}) == {"solver": 3}


@pytest.mark.parametrize(
    ("lag", "versions_per_group", "max_staleness", "expected"),
    [
        (0, 0.0, 8, 16),
        (0, 9.0, 8, 16),
        (0, 18.0, 8, 8),
        (0, 1e9, 8, 1),
        (3, 0.0, 8, 16),
        (3, 12.0, 8, 8),
        (6, 0.0, 8, 10),
        (8, 0.0, 8, 3),
        (9, 0.0, 8, 0),
        (50, 0.0, 8, 0),
        (0, 0.5, 0, 16),
        (0, 2.0, 0, 8),
        (1, 0.0, 0, 0),
    ],
)
def test_sixteen_tasks_at_most(lag: int, versions_per_group: float, max_staleness: int, expected: int) -> None:
    assert allowance(16, lag=lag, versions_per_group=versions_per_group, max_staleness=max_staleness) == expected


def test_it_never_grows_with_lag_or_slowness_and_is_zero_only_without_room() -> None:
    for max_staleness in range(6):
        for pace in (0.0, 0.5, 1.0, 3.0, 10.0, 100.0):
            by_lag = [
                allowance(7, lag=lag, versions_per_group=pace, max_staleness=max_staleness)
                for lag in range(max_staleness + 3)
            ]
            assert by_lag == sorted(by_lag, reverse=True)
            assert [count > 0 for count in by_lag] == [lag <= max_staleness for lag in range(max_staleness + 3)]
            slower = allowance(7, lag=0, versions_per_group=2 * pace, max_staleness=max_staleness)
            assert slower <= by_lag[0] <= 7
