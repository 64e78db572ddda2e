"""A worker's places: given back episode by episode, and their mean weighted by time."""

from __future__ import annotations

import pytest

from trimtab.rollout.occupancy import Occupancy, TaskPlaces


def _begun(occupancy: Occupancy) -> TaskPlaces:
    places = occupancy.take()
    places.begin()
    return places


def test_it_is_the_mean_over_the_time_since_the_last_look() -> None:
    now = 0.0
    occupancy = Occupancy(clock=lambda: now)
    assert occupancy.since_last() == 0.0
    tasks = [_begun(occupancy) for _ in range(4)]
    now = 1.0
    for task in tasks:
        task.vacate()
    now = 4.0
    assert occupancy.since_last() == pytest.approx(1.0)
    _begun(occupancy), _begun(occupancy)
    now = 6.0
    assert occupancy.since_last() == pytest.approx(2.0), "what was before the last look counts no more"
    now = 8.0
    assert occupancy.since_last() == pytest.approx(2.0), "what it still has goes on counting"


def test_what_waits_for_weights_takes_its_places_and_is_no_work() -> None:
    now = 0.0
    occupancy = Occupancy(clock=lambda: now)
    waits = occupancy.take()
    now = 1.0
    assert (occupancy.free(1), occupancy.since_last()) == (0, 0.0)
    waits.begin()
    now = 2.0
    waits.episode_ended(group_size=2)
    now = 3.0
    waits.vacate()
    assert occupancy.since_last() == pytest.approx(0.75)


@pytest.mark.parametrize("group_size", [2, 3, 7, 8])
def test_episodes_that_ended_make_room_for_another_task(group_size: int) -> None:
    occupancy = Occupancy(clock=lambda: 0.0)
    tasks = [occupancy.take() for _ in range(group_size)]
    assert occupancy.free(group_size) == 0
    for task in tasks[:-1]:
        task.episode_ended(group_size=group_size)
        assert (occupancy.free(group_size), occupancy.load) == (0, group_size), (
            "a part of a task is no room for a whole one"
        )
    tasks[-1].episode_ended(group_size=group_size)
    assert (occupancy.free(group_size), occupancy.load) == (1, group_size - 1)


@pytest.mark.parametrize("group_size", [1, 4])
def test_the_last_place_of_a_task_is_free_when_it_is_settled(group_size: int) -> None:
    occupancy = Occupancy(clock=lambda: 0.0)
    task = occupancy.take()
    for _ in range(group_size):
        task.episode_ended(group_size=group_size)
    assert (occupancy.load, occupancy.free(1)) == (1, 0)
    task.vacate()
    task.vacate()
    assert (occupancy.load, occupancy.free(1)) == (0, 1)
