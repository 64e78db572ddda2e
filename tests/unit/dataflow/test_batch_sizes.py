"""Policies with batches of different sizes take their steps from the same episodes, and none waits for ever."""

from __future__ import annotations

import pytest

from tests.support.dataflow.books import GROUP, Feed, ledger
from trimtab.dataflow.ledger.records import PolicyFinished, StepGranted, StepTrained

POLICIES = {"solver": 1, "judge": 1}
SIZES = {"solver": 4 * GROUP, "judge": 2 * GROUP}


def feed_of(*, max_staleness: int, sizes: dict[str, int] = SIZES, policies: dict[str, int] = POLICIES) -> Feed:
    return Feed(ledger(policies=policies, max_staleness=max_staleness, batch_sizes=sizes))


def step(feed: Feed, policy: str) -> bool:
    """The trainer's next step, if there is one: granted, trained, and its weights served at once."""
    record = feed.ledger.propose(policy, now=1.0)
    if not isinstance(record, StepGranted):
        return False
    feed.ledger.apply(record)
    feed.ledger.apply(StepTrained(policy=policy, step=record.step))
    return True


def roll_out(feed: Feed) -> int:
    """All tasks that may be asked for."""
    count, first = feed.ledger.capacity_tasks(), feed.ledger.issued
    feed.issue(count)
    for task in range(first, first + count):
        for policy, books in feed.ledger.trainers.items():
            feed.complete(task, policy=policy, version=books.trained_steps)
    return count


def test_a_step_has_as_many_groups_as_its_policy_says() -> None:
    feed = feed_of(max_staleness=3)
    roll_out(feed)
    granted = {policy: feed.ledger.propose(policy, now=1.0) for policy in POLICIES}
    sizes = {policy: len(record.groups) for policy, record in granted.items() if isinstance(record, StepGranted)}
    assert sizes == {"solver": 4, "judge": 2}


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
@pytest.mark.parametrize("order", [("solver", "judge"), ("judge", "solver")])
def test_both_go_on_and_the_smaller_batch_takes_twice_the_steps(max_staleness: int, order: tuple[str, str]) -> None:
    feed = feed_of(max_staleness=max_staleness)
    for _ in range(200):
        roll_out(feed)
        for policy in order:
            while step(feed, policy):
                pass
    solver, judge = (feed.ledger.trainers[policy] for policy in ("solver", "judge"))
    assert solver.trained_steps >= 50
    assert abs(judge.trained_steps - 2 * solver.trained_steps) <= 2 * (max_staleness + 1)
    assert (solver.dropped_groups, judge.dropped_groups) == (0, 0), "nothing was made to be given up"


def test_no_more_is_asked_for_than_the_smaller_batch_can_take() -> None:
    feed = feed_of(max_staleness=1)
    assert feed.ledger.capacity_tasks() == 4, "two steps of the judge; the solver could take twice as many"
    roll_out(feed)
    assert step(feed, "solver")
    assert feed.ledger.capacity_tasks() == 0, "the judge has all that it may"
    assert step(feed, "judge")
    assert feed.ledger.capacity_tasks() == 2


def test_a_larger_batch_than_the_other_policy_may_hold_still_fills() -> None:
    """The solver's one step takes eight steps of the judge, which may be only one ahead."""
    feed = feed_of(max_staleness=0, sizes={"solver": 8 * GROUP, "judge": GROUP})
    for _ in range(8):
        assert roll_out(feed) == 1
        assert step(feed, "judge")
    assert step(feed, "solver")


def test_one_that_is_finished_leaves_the_room_to_the_other() -> None:
    feed = feed_of(max_staleness=0)
    feed.ledger.apply(PolicyFinished(policy="judge", reason="enough"))
    assert feed.ledger.capacity_tasks() == 4
