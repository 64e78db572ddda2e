"""Cases of the ledger worth their own names."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.dataflow.books import BATCH, GROUP, STALENESS, Feed, header, ledger
from trimtab.dataflow.admission import missing_groups, tasks_for
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.awaited_tasks import unseen
from trimtab.dataflow.ledger.errors import LedgerError
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    PolicyFinished,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    TasksIssued,
)
from trimtab.dataflow.ledger.settled import SettledGroups
from trimtab.fabric.wire.envelope import decode, framed


@pytest.mark.parametrize(
    ("wanted", "buffered", "running", "expected"), [(6, 0, 0, 6), (6, 2, 2, 2), (6, 4, 2, 0), (4, 6, 0, 0)]
)
def test_what_waits_and_what_is_running_is_not_asked_for_again(
    wanted: int, buffered: int, running: int, expected: int
) -> None:
    missing = missing_groups(wanted=wanted, buffered=buffered, running=running, needed=lambda groups: groups)
    assert missing == expected


def test_a_rest_of_groups_is_worth_a_task_only_when_nothing_is_under_way() -> None:
    assert tasks_for(5, groups_per_task=2, idle=True) == 2
    assert tasks_for(1, groups_per_task=2, idle=False) == 0
    assert tasks_for(1, groups_per_task=2, idle=True) == 1
    assert tasks_for(0, groups_per_task=2, idle=True) == 0


def test_groups_are_chosen_by_deadline_and_then_by_arrival() -> None:
    feed = Feed(ledger())
    feed.issue(6)
    for task, version in ((0, 2), (1, 1), (2, 2), (3, 0), (4, 1)):
        feed.complete(task, version=version)
    granted = feed.ledger.propose("solver", now=1.0)
    assert isinstance(granted, StepGranted)
    assert granted.groups == ("t3.solver", "t1.solver")
    feed.ledger.apply(granted)
    second = feed.ledger.propose("solver", now=1.0)
    assert isinstance(second, StepGranted)
    assert second.groups == ("t4.solver", "t0.solver")


def test_stale_groups_are_dropped_also_while_there_are_too_few_fresh_ones() -> None:
    """Otherwise they would hold the room of the fresh ones, and the job would stand still for ever."""
    feed = Feed(ledger())
    books = feed.ledger.trainers["solver"]
    feed.issue(6)
    for task in range(6):
        feed.complete(task)
    for step in range(STALENESS):
        granted = feed.ledger.propose("solver", now=1.0)
        assert isinstance(granted, StepGranted)
        feed.ledger.apply(granted)
        feed.ledger.apply(StepTrained(policy="solver", step=step))
    feed.issue(feed.ledger.capacity_tasks())
    for task in range(6, feed.ledger.issued):  # from weights that never advanced
        feed.complete(task)
    feed.ledger.apply(StepGranted(policy="solver", step=2, groups=("t4.solver", "t5.solver"), granted_at=1.0))
    feed.ledger.apply(StepTrained(policy="solver", step=2))
    assert not feed.ledger.can_grant("solver")
    dropped = feed.ledger.propose("solver", now=1.0)
    assert isinstance(dropped, GroupsDropped)
    assert len(dropped.dropped) == 4
    room = feed.ledger.capacity_tasks()
    feed.ledger.apply(dropped)
    assert feed.ledger.capacity_tasks() == room + 4
    assert books.buffered == 0


def test_a_failed_sample_spoils_its_group_and_never_becomes_a_reward() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    assert feed.arrive(header(0, 0)) is Arrival.NEW
    assert feed.arrive(header(0, 1, error="engine-gone")) is Arrival.FAILED
    assert feed.ledger.trainers["solver"].buffered == 0
    assert feed.ledger.capacity_tasks() == (STALENESS + 1) * BATCH // GROUP
    assert feed.arrive(header(0, 1)) is Arrival.DUPLICATE


def test_a_scored_sample_without_trained_tokens_spoils_its_group() -> None:
    feed = Feed(ledger())
    feed.issue(1)
    feed.arrive(header(0, 0))
    assert feed.arrive(header(0, 1, version=None)) is Arrival.FAILED


@pytest.mark.parametrize(
    "stranger",
    [
        header(0, 0, group_id="elsewhere"),
        header(0, 0, group_id="t1.solver"),
        header(0, 0, group_size=1),
        header(0, 0, group_id="t00.solver"),
    ],
)
def test_what_no_task_can_have_led_to_is_refused(stranger: object) -> None:
    feed = Feed(ledger())
    feed.issue(1)
    assert feed.arrive(stranger) is Arrival.REFUSED  # type: ignore[arg-type]


def test_other_policies_are_not_ours() -> None:
    assert Feed(ledger()).arrive(header(0, 0, policy="judge")) is Arrival.NOT_FOR_TRAINING


def test_a_finished_policy_does_not_stop_the_others() -> None:
    feed = Feed(ledger(policies={"solver": 1, "judge": 1}))
    feed.issue(feed.ledger.capacity_tasks())
    assert feed.ledger.capacity_tasks() == 0
    for task in range(6):
        feed.complete(task)
        feed.complete(task, policy="judge")
    feed.ledger.apply(PolicyFinished(policy="judge", reason="enough"))
    granted = feed.ledger.propose("solver", now=1.0)
    assert granted is not None
    feed.ledger.apply(granted)
    feed.ledger.apply(StepTrained(policy="solver", step=0))
    assert feed.ledger.capacity_tasks() == BATCH // GROUP
    feed.issue(2)
    assert feed.complete(6, policy="judge") is Arrival.COMPLETED
    assert feed.ledger.trainers["judge"].buffered == 0, "nobody will ever take it"


def test_only_the_newest_tasks_may_be_unsent_and_of_those_only_the_unseen() -> None:
    feed = Feed(ledger())
    feed.issue(2)
    feed.issue(4)
    feed.arrive(header(3, 0))
    feed.complete(4)
    assert unseen(feed.ledger, feed.ledger.newest_tasks) == [2, 5]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (TasksIssued(first=5, count=1), "tasks issued from 5"),
        (StepGranted(policy="solver", step=1, groups=("t0.solver",), granted_at=1.0), "step 1 granted where 0"),
        (StepGranted(policy="solver", step=0, groups=("t9.solver",), granted_at=1.0), "not in the buffer"),
        (StepGranted(policy="solver", step=0, groups=("t0.solver",) * 2, granted_at=1.0), "twice"),
        (GroupsDropped(policy="solver", step=0, dropped=("t9.solver",)), "not in the buffer"),
        (StepDurable(policy="nobody", step=0), "which the job does not have"),
    ],
)
def test_records_that_contradict_the_streams_stop_the_process(record: TasksIssued, why: str) -> None:
    feed = Feed(ledger())
    feed.issue(1)
    feed.complete(0)
    with pytest.raises(LedgerError, match=why):
        feed.ledger.apply(record)


def test_times_are_kept_for_the_windows_that_are_reported() -> None:
    books = ledger().trainers["solver"]
    for step in range(1000):
        books.time(StepTimed(policy="solver", step=step, wait_seconds=1.0, step_seconds=2.0, at=1.0))
    assert books.times.waiting(first_step=990, last_step=999) == (10.0, 20.0)
    assert not books.wants_time(3), "too old to matter"
    assert not books.wants_time(999)
    assert books.wants_time(1000)
    assert len(books.times.by_step) < 50


def test_a_ledger_in_which_every_rank_has_a_record_of_its_own_adds_up() -> None:
    """As it was written before there was one for all."""
    books = ledger().trainers["solver"]
    for rank in range(3):
        fields = {"policy": "solver", "step": 0, "rank": rank, "wait_seconds": 1.0, "step_seconds": 4.0, "at": 1.0}
        books.time(decode(framed(StepTimed, msgspec.msgpack.encode(fields)), StepTimed))
    assert books.times.waiting(first_step=0, last_step=0) == (3.0, 12.0)
    assert books.times.by_step[0].ranks == 3


def test_a_step_counts_as_timed_when_its_times_are_here_or_will_not_come() -> None:
    books = ledger().trainers["solver"]
    assert books.timed_steps == 0
    books.trained(0)
    assert books.timed_steps == 0, "its ranks are about to tell"
    books.time(StepTimed(policy="solver", step=0, wait_seconds=1.0, step_seconds=2.0, at=1.0))
    assert books.timed_steps == 1
    books.trained(2)
    assert books.timed_steps == 2, "of a step before the newest nothing more comes"


def test_settled_groups_are_remembered_as_a_number() -> None:
    settled = SettledGroups()
    for number in reversed(range(1000)):
        settled.add([f"t{number}.solver"])
    settled.add(["t1001.solver", "t0.judge"])
    assert settled.held() == 1
    assert "t999.solver" in settled
    assert "t1000.solver" not in settled
    assert "t1001.solver" in settled
    assert "t1.judge" not in settled
