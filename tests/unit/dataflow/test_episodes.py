"""Episodes of any number of rows: when they are closed, which run of them counts, and what becomes of their groups."""

from __future__ import annotations

import pytest

from tests.support.dataflow.books import BATCH, GROUP, STALENESS, Feed, header, ledger
from tests.support.dataflow.ledger_pictures import picture
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.episode_rows import MAX_OPEN_RUNS
from trimtab.dataflow.ledger.groups import Group
from trimtab.dataflow.ledger.records import GroupsFiltered, ReducedGroup, StepGranted
from trimtab.dataflow.ledger.snapshot import Restoration, take_snapshot
from trimtab.fabric.wire.header import TrajectoryHeader


def rows(task: int, index: int, parts: int, *, run: str = "a", reward: float = 1.0) -> list[TrajectoryHeader]:
    return [header(task, index, part=part, parts=parts, run=run, reward=reward) for part in range(parts)]


def waiting(feed: Feed, group_id: str = "t0.solver") -> Group:
    group = feed.ledger.trainers["solver"].waiting_group(group_id)
    assert group is not None
    return group


def test_a_group_is_complete_when_every_episode_has_closed_with_its_count() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    first, second, third = rows(0, 1, 3)
    assert [feed.arrive(one) for one in (third, first, *rows(0, 0, 1))] == [Arrival.NEW] * 3
    assert feed.arrive(second) is Arrival.COMPLETED
    group = waiting(feed)
    assert [(sample.index, sample.part) for sample in group.samples] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert group.episodes == 2


def test_rows_of_two_runs_do_not_make_an_episode() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    feed.arrive(header(0, 0))
    given_up, late = rows(0, 1, 2, run="a"), rows(0, 1, 2, run="b", reward=0.5)
    assert feed.arrive(given_up[0]) is Arrival.NEW
    assert feed.arrive(late[1]) is Arrival.NEW, "two rows of two are here, of two runs"
    assert feed.arrive(late[0]) is Arrival.COMPLETED
    assert [sample.reward for sample in waiting(feed).samples] == [1.0, 0.5, 0.5]
    assert feed.arrive(given_up[1]) is Arrival.DUPLICATE


def test_the_first_run_that_is_whole_is_the_episode_however_many_rows_another_has() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    long, short = rows(0, 0, 4, run="long"), rows(0, 0, 2, run="short")
    for one in (*long[:3], *short, long[3]):
        feed.arrive(one)
    assert feed.arrive(header(0, 1)) is Arrival.COMPLETED
    assert [sample.trajectory_id for sample in waiting(feed).samples] == [
        "t0.solver.0.0",
        "t0.solver.0.1",
        "t0.solver.1.0",
    ]
    assert [sample.sequence for sample in waiting(feed).samples][:2] == [4, 5]
    assert feed.ledger.streams["solver"].duplicates == 1


def test_a_row_that_comes_twice_closes_nothing() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    feed.arrive(header(0, 0))
    first, second = rows(0, 1, 2)
    assert [feed.arrive(one) for one in (first, first)] == [Arrival.NEW, Arrival.DUPLICATE]
    assert feed.arrive(second) is Arrival.COMPLETED


def test_a_row_that_counts_its_run_otherwise_is_refused() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    feed.arrive(header(0, 0))
    assert feed.arrive(header(0, 1, part=0, parts=3)) is Arrival.NEW
    assert feed.arrive(header(0, 1, part=1, parts=2)) is Arrival.REFUSED
    assert [feed.arrive(one) for one in rows(0, 1, 3, run="0")] == [Arrival.DUPLICATE, Arrival.NEW, Arrival.COMPLETED]


def test_an_episode_without_rows_closes_and_is_not_in_its_group() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    assert feed.arrive(header(0, 0, parts=0)) is Arrival.NEW
    assert feed.arrive(header(0, 1)) is Arrival.COMPLETED
    assert [sample.index for sample in waiting(feed).samples] == [1]
    assert waiting(feed).episodes == 1


def test_a_group_without_any_row_ends_and_its_place_is_filled_by_another() -> None:
    feed = Feed(ledger())
    room = feed.ledger.capacity_tasks()
    feed.issue(room)
    assert feed.ledger.capacity_tasks() == 0
    feed.arrive(header(0, 0, parts=0))
    assert feed.arrive(header(0, 1, parts=0)) is Arrival.EMPTY
    stream = feed.ledger.streams["solver"]
    assert (stream.empty_groups, stream.failed_groups, len(stream.arriving)) == (1, 0, 0)
    assert feed.ledger.capacity_tasks() == 1
    assert feed.arrive(header(0, 1)) is Arrival.DUPLICATE


def test_a_failure_closes_its_episode_whatever_has_arrived_of_it() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    for one in rows(0, 0, 3)[:2]:
        feed.arrive(one)
    feed.arrive(header(0, 0, error="engine-gone", run="b"))
    assert feed.arrive(header(0, 1)) is Arrival.FAILED
    assert feed.arrive(rows(0, 0, 3)[2]) is Arrival.DUPLICATE


def test_rows_of_runs_that_were_given_up_are_held_for_a_few_runs_only() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    for run in range(100):
        for one in rows(0, 0, 50, run=f"run-{run}")[:49]:
            feed.arrive(one)
    partial = feed.ledger.streams["solver"].arriving["t0.solver"]
    assert partial.open_rows() == MAX_OPEN_RUNS * 49
    assert feed.arrive(rows(0, 0, 50, run="run-99")[49]) is Arrival.NEW
    assert partial.open_rows() == 0
    assert feed.arrive(header(0, 1)) is Arrival.COMPLETED


def test_a_batch_counts_episodes_and_its_reward_is_theirs() -> None:
    feed = Feed(ledger())
    feed.issue(BATCH // GROUP)
    for task in range(BATCH // GROUP):
        for one in (*rows(task, 0, 5, reward=0.0), *rows(task, 1, 1, reward=1.0)):
            feed.arrive(one)
    granted = feed.ledger.propose("solver", now=1.0)
    assert isinstance(granted, StepGranted)
    feed.ledger.apply(granted)
    books = feed.ledger.trainers["solver"]
    assert books.consumed_samples == BATCH
    assert list(books.rewards) == [0.5], "not the mean of the rows, most of which got nothing"


@pytest.mark.parametrize("filtered", [False, True])
def test_a_snapshot_knows_the_same_rows_of_the_same_runs(filtered: bool) -> None:
    feed = Feed(ledger(has_filters=filtered))
    feed.issue(3)
    seen: list[tuple[int, str, TrajectoryHeader]] = []

    def arrive(one: TrajectoryHeader) -> None:
        feed.arrive(one)
        seen.append((feed.sequence, f"{one.group_id}.{one.group_index}.{one.part}", one))

    for one in (
        *rows(0, 0, 3, run="a")[:2],
        *rows(0, 0, 2, run="b"),
        header(1, 0, parts=0),
        *rows(0, 1, 3),
        rows(0, 0, 3, run="a")[2],
        *rows(2, 0, 4, run="a")[:3],
        *rows(2, 0, 4, run="b")[:1],
    ):
        arrive(one)
    if filtered:
        reduced = ReducedGroup("t0.solver", (0,), ((1, 2),))
        feed.ledger.apply(GroupsFiltered(policy="solver", reduced=(reduced,)))
        assert [(one.index, one.part) for one in waiting(feed).samples] == [(0, 0), (0, 1), (1, 2)]
    snapshot = take_snapshot(feed.ledger, learnt={})
    assert snapshot.floor == 1, "rows that were given up are needed to come to the same again"
    again = ledger(has_filters=filtered)
    restoration = Restoration(again, snapshot)
    for arrived in seen:
        restoration.arrived(*arrived)
    restoration.finish()
    assert picture(again) == picture(feed.ledger)
    assert waiting(Feed(again)) == waiting(feed)


def test_staleness_is_that_of_the_oldest_row() -> None:
    feed = Feed(ledger())
    feed.issue(2)
    feed.arrive(header(0, 0, version=STALENESS))
    feed.arrive(header(0, 1, part=0, parts=2, version=STALENESS))
    feed.arrive(header(0, 1, part=1, parts=2, version=0))
    assert waiting(feed).oldest_version == 0
