"""What a snapshot must carry, and what it lets go."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.dataflow.books import Feed, header, ledger
from tests.support.dataflow.ledger_pictures import picture
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsFiltered, ReducedGroup, StepDurable, StepGranted
from trimtab.dataflow.ledger.snapshot import LedgerSnapshot, Restoration, take_snapshot
from trimtab.fabric.wire.header import TrajectoryHeader


class Recorded(Feed):
    """Keeps the headers it has fed, as the stream would."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.stream: list[tuple[int, TrajectoryHeader]] = []

    def arrive(self, one: TrajectoryHeader) -> Arrival:
        self.stream.append((self.sequence + 1, one))
        return super().arrive(one)


def written(books: Ledger) -> LedgerSnapshot:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(take_snapshot(books, learnt={})), type=LedgerSnapshot)


def restored(feed: Recorded, snapshot: LedgerSnapshot) -> Ledger:
    books = ledger(has_filters=feed.ledger.has_filters)
    assert restoring(feed, snapshot, books).gone is None
    return books


def restoring(feed: Recorded, snapshot: LedgerSnapshot, books: Ledger) -> Restoration:
    restoration = Restoration(books, snapshot)
    for sequence, one in feed.stream:
        if snapshot.floor <= sequence <= snapshot.last_sequence:
            restoration.arrived(sequence, f"{one.group_id}.{one.group_index}.{one.part}", one)
    restoration.finish()
    return restoration


def grant(feed: Feed) -> StepGranted:
    granted = feed.ledger.propose("solver", now=1.0)
    assert isinstance(granted, StepGranted)
    feed.ledger.apply(granted)
    return granted


def test_trajectories_of_durable_steps_are_let_go() -> None:
    feed = Recorded(ledger())
    feed.issue(4)
    for task in range(4):
        feed.complete(task)
    grant(feed)
    assert written(feed.ledger).floor == 1, "the step may be asked for again"
    feed.ledger.apply(StepDurable(policy="solver", step=0))
    assert written(feed.ledger).floor == 5, "two groups wait"
    grant(feed)
    feed.ledger.apply(StepDurable(policy="solver", step=1))
    assert written(feed.ledger).floor == 9, "nothing is left of the first eight"


def test_a_group_of_which_one_sample_has_come_keeps_it() -> None:
    feed = Recorded(ledger())
    feed.issue(2)
    feed.arrive(header(0, 0))
    feed.arrive(header(1, 0, error="engine-gone"))
    snapshot = written(feed.ledger)
    assert snapshot.floor == 1
    books = restored(feed, snapshot)
    assert picture(books) == picture(feed.ledger)
    assert books.arrived(3, "t0.solver.1", header(0, 1)) is Arrival.COMPLETED


@pytest.mark.parametrize("kept", [0, 1])
def test_a_group_of_which_filters_left_one_sample_keeps_all(kept: int) -> None:
    """Its deadline is that of the whole group."""
    feed = Recorded(ledger(has_filters=True))
    feed.issue(1)
    feed.arrive(header(0, 0, version=0))
    feed.arrive(header(0, 1, version=1))
    feed.ledger.apply(
        GroupsFiltered(policy="solver", kept=(), reduced=(ReducedGroup("t0.solver", (kept,)),), left_out=())
    )
    snapshot = written(feed.ledger)
    assert snapshot.floor == 1
    assert picture(restored(feed, snapshot)) == picture(feed.ledger)


def test_what_was_let_go_is_still_known() -> None:
    feed = Recorded(ledger())
    feed.issue(2)
    feed.complete(0)
    feed.complete(1)
    grant(feed)
    feed.ledger.apply(StepDurable(policy="solver", step=0))
    snapshot = written(feed.ledger)
    assert snapshot.floor == 5
    assert restored(feed, snapshot).arrived(5, "t0.solver.0", header(0, 0)) is Arrival.DUPLICATE


def test_of_a_stream_that_lost_a_row_the_other_groups_are_restored() -> None:
    feed = Recorded(ledger())
    feed.issue(2)
    feed.complete(0)
    feed.complete(1)
    snapshot = written(feed.ledger)
    del feed.stream[0]
    restoration = restoring(feed, snapshot, books := ledger())
    assert restoration.gone == "group t0.solver is in the ledger's snapshot and not whole in the trajectory stream"
    assert books.trainers["solver"].waiting_group("t1.solver") is not None
    assert books.trainers["solver"].waiting_group("t0.solver") is None


def test_times_of_every_rank_in_a_snapshot_of_an_older_version_add_up() -> None:
    feed = Recorded(ledger())
    feed.issue(1)
    snapshot = written(feed.ledger)
    snapshot.trainers["solver"].rank_times = {0: {0: (1.0, 4.0), 1: (2.0, 4.0)}}
    times = restored(feed, snapshot).trainers["solver"].times
    assert times.waiting(first_step=0, last_step=0) == (3.0, 8.0)
    assert times.by_step[0].ranks == 2
