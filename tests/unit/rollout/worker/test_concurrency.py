"""The number of tasks finds the engine's capacity: a simulated engine with a batch, a queue and a cache."""

from __future__ import annotations

import random

import pytest

from trimtab.rollout.worker.concurrency import Concurrency, LoadSample, Occupancy, TaskOccupancy


class SimulatedEngine:
    """Tasks of a group's requests. Each look, some tasks end, and the worker takes what it may."""

    def __init__(self, *, batch: int, group: int, cache: int = 10**9, queue: int = 10**9, seed: int = 0) -> None:
        self.batch = batch
        self.cache = cache
        self._group = group
        self._queue = queue
        self._chance = random.Random(seed)
        self.tasks = 0

    def step(self, limit: int) -> LoadSample:
        """A second of work with this limit."""
        ended = sum(self._chance.random() < 0.3 for _ in range(self.tasks))
        self.tasks = max(self.tasks - ended, 0)
        self.tasks = max(self.tasks, limit)
        requests = self.tasks * self._group
        held = min(requests, self._queue)
        running = min(held, self.batch)
        return LoadSample(
            running=running,
            waiting=held - running,
            token_usage=min(1.0, running / self.cache),
            overloads=requests - held,
        )


def settled(concurrency: Concurrency, engine: SimulatedEngine, *, steps: int = 200) -> list[int]:
    """The limits after each look."""
    limits = []
    for _ in range(steps):
        sample = engine.step(concurrency.limit)
        concurrency.note("policy", sample, in_flight=engine.tasks)
        limits.append(concurrency.limit)
    return limits


@pytest.mark.parametrize(("batch", "group"), [(8, 1), (64, 8), (100, 8), (12, 8), (3, 1), (500, 16)])
def test_it_converges_to_what_the_batch_holds(batch: int, group: int) -> None:
    concurrency = Concurrency(ceiling=64, requests_per_task=group)
    last = settled(concurrency, SimulatedEngine(batch=batch, group=group))[-50:]
    # The batch is full, and what waits is at most about a task's requests.
    assert all(min(64, batch // group) <= limit <= batch // group + 2 for limit in last)


def test_an_engine_with_room_gets_all_that_the_pool_allows() -> None:
    concurrency = Concurrency(ceiling=16, requests_per_task=4)
    assert settled(concurrency, SimulatedEngine(batch=1000, group=4)) == [16] * 200


def test_it_never_falls_below_one_whatever_the_engine_says() -> None:
    concurrency = Concurrency(ceiling=16, requests_per_task=8)
    limits = settled(concurrency, SimulatedEngine(batch=1, group=8, cache=1, queue=2))
    assert limits[-1] == 1
    assert min(limits) == 1


def test_refusals_are_backed_away_from() -> None:
    concurrency = Concurrency(ceiling=64, requests_per_task=1)
    engine = SimulatedEngine(batch=8, group=1, queue=10)
    limits = settled(concurrency, engine)
    assert all(8 <= limit <= 11 for limit in limits[-50:])


def test_a_full_cache_is_backed_away_from() -> None:
    concurrency = Concurrency(ceiling=64, requests_per_task=1)
    engine = SimulatedEngine(batch=100, group=1, cache=20)
    limits = settled(concurrency, engine)
    assert all(12 <= limit <= 20 for limit in limits[-50:])


def test_it_recovers_when_the_engine_can_take_more_again() -> None:
    concurrency = Concurrency(ceiling=32, requests_per_task=1)
    engine = SimulatedEngine(batch=4, group=1)
    assert settled(concurrency, engine)[-1] <= 6
    engine.batch = 1000
    assert settled(concurrency, engine)[-1] == 32


def test_a_queue_at_one_look_alone_is_a_burst() -> None:
    concurrency = Concurrency(ceiling=8, requests_per_task=1)
    calm = LoadSample(running=8, waiting=0, token_usage=0.1, overloads=0)
    burst = LoadSample(running=2, waiting=6, token_usage=0.1, overloads=0)
    for sample in (calm, burst, calm, burst, calm):
        concurrency.note("policy", sample, in_flight=8)
        assert concurrency.limit == 8
    concurrency.note("policy", burst, in_flight=8)
    concurrency.note("policy", burst, in_flight=8)
    assert concurrency.limit == 4


def test_a_step_back_is_given_time_to_take_effect() -> None:
    concurrency = Concurrency(ceiling=16, requests_per_task=1)
    queued = LoadSample(running=8, waiting=8, token_usage=0.1, overloads=0)
    for _ in range(5):
        concurrency.note("policy", queued, in_flight=16)  # none of the tasks has ended yet
    assert concurrency.limit == 8
    concurrency.note("policy", queued, in_flight=8)
    assert concurrency.limit == 4


def test_an_idle_worker_is_no_reason_to_allow_more() -> None:
    concurrency = Concurrency(ceiling=16, requests_per_task=1)
    for in_flight in (16, 16):
        concurrency.note("policy", LoadSample(running=8, waiting=8, token_usage=0.1, overloads=0), in_flight=in_flight)
    assert concurrency.limit == 8
    for _ in range(10):
        concurrency.note("policy", LoadSample(running=1, waiting=0, token_usage=0.0, overloads=0), in_flight=1)
    assert concurrency.limit == 8


def test_of_several_engines_the_one_that_bears_least_decides() -> None:
    concurrency = Concurrency(ceiling=16, requests_per_task=1)
    for _ in range(2):
        concurrency.note("large", LoadSample(running=16, waiting=0, token_usage=0.1, overloads=0), in_flight=16)
        concurrency.note("small", LoadSample(running=8, waiting=8, token_usage=0.1, overloads=0), in_flight=16)
    assert concurrency.limit == 8


def _begun(occupancy: Occupancy) -> TaskOccupancy:
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
