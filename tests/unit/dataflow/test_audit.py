"""The auditor must find what it is there for."""

from __future__ import annotations

import pytest

from tests.support.dataflow.books import header
from tests.support.dataflow.jobs import spec
from trimtab.dataflow.audit.report import judged
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.audit.violations import violations
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    GroupsFiltered,
    PolicyFinished,
    Record,
    StepGranted,
    StepTimed,
    StepTrained,
    TasksIssued,
)
from trimtab.fabric.wire.header import TrajectoryHeader


def grant(step: int, *tasks: int, dropped: tuple[str, ...] = ()) -> StepGranted:
    groups = tuple(f"t{task}.solver" for task in tasks)
    return StepGranted(policy="solver", step=step, groups=groups, dropped=dropped, granted_at=1.0)


def trained(step: int) -> StepTrained:
    return StepTrained(policy="solver", step=step)


def arrived(*tasks: int, version: int = 0) -> list[TrajectoryHeader]:
    return [header(task, index, version=version) for task in tasks for index in range(2)]


GOOD: list[Record] = [
    TasksIssued(first=0, count=6),
    grant(0, 0, 1),
    trained(0),
    TasksIssued(first=6, count=2),
    grant(1, 3, 2),
]


def filtered(*tasks: int, left_out: tuple[int, ...] = ()) -> GroupsFiltered:
    kept, out = ([f"t{task}.solver" for task in some] for some in (tasks, left_out))
    return GroupsFiltered(policy="solver", kept=tuple(kept), left_out=tuple(out))


def found(records: list[Record], headers: list[TrajectoryHeader], *, queued: tuple[str, ...] = ()) -> list[str]:
    return violations(Streams(records=records, headers=headers, queued=frozenset(queued)), data=spec().data)


def test_a_good_run_has_none() -> None:
    assert found(GOOD, arrived(0, 1, 2, 3, 4), queued=("t5",)) == []
    assert found(GOOD, [*arrived(0, 1, 2, 3, 4, 5), *arrived(0, 3)]) == [], "duplicates are harmless"
    assert found([], []) == []


@pytest.mark.parametrize(
    ("records", "headers", "expected"),
    [
        ([*GOOD, grant(2, 4, 0)], arrived(*range(8)), "t0.solver trained twice, in steps 0 and 2"),
        ([*GOOD, grant(3, 4, 5)], arrived(*range(8)), "step 3 granted where 2 was due"),
        ([*GOOD, grant(2, 4, 5)], arrived(0, 1, 2, 3, 4), "t5.solver of step 2 never arrived"),
        ([*GOOD, grant(2, 4, 5)], arrived(*range(8))[:-5], "t5.solver of step 2 has 1 of 2 episodes"),
        (GOOD, arrived(0, 1, 2, 3, 4), "task t5 is lost"),
        (GOOD, [*arrived(0, 1, 2, 3, 4), header(5, 0)], "t5.solver lost all but 1"),
        ([*GOOD, grant(2, 4)], arrived(*range(8)), "step 2 has 1 groups, not 2"),
        ([*GOOD, TasksIssued(first=9, count=1)], arrived(*range(8)), "tasks issued from 9 where 8 was due"),
        ([*GOOD, TasksIssued(first=8, count=3)], arrived(*range(8)), "22 episodes asked for at version 1, bound 16"),
        ([*GOOD, grant(2, 4, 5), grant(3, 6, 7)], arrived(*range(8)), "step 3 is 3 versions stale, 2 are allowed"),
        (
            [*GOOD, GroupsDropped(policy="solver", step=2, dropped=("t4.solver",))],
            arrived(*range(8)),
            "t4.solver lost: 2 versions stale at step 2",
        ),
        (
            [*GOOD, GroupsDropped(policy="solver", step=3, dropped=("t4.solver",)), grant(2, 4, 5)],
            arrived(*range(8)),
            "t4.solver trained in step 2 after it was given up",
        ),
        (
            [*GOOD, PolicyFinished(policy="solver", reason="x"), grant(2, 4, 5)],
            arrived(*range(8)),
            "step 2 granted after the policy was finished",
        ),
        (
            [*GOOD, StepTimed(policy="solver", step=2, wait_seconds=1.0, step_seconds=2.0, at=1.0)],
            arrived(*range(8)),
            "step 2 was trained before it was granted",
        ),
        ([*GOOD, grant(2, 4, 5)], [*arrived(*range(5), 6, 7), header(5, 0), header(5, 1, error="x")], "failed episode"),
        ([*GOOD, grant(2, 5, 6)], arrived(*range(8)), "t4.solver of version 0 passed over by step 2"),
        (
            [*GOOD, filtered(4, 5, 6), grant(2, 5, 6)],
            [*arrived(*range(4)), *arrived(4, 5, 6, 7, version=1)],
            "t4.solver of version 1 passed over by step 2",
        ),
        ([*GOOD, filtered(0, 1, 2, 3, 5)], arrived(*range(8)), "t4.solver passed over by the filters"),
    ],
)
def test_each_violation_is_found(records: list[Record], headers: list[TrajectoryHeader], expected: str) -> None:
    problems = found(records, headers)
    assert any(expected in problem for problem in problems), problems


def test_what_came_after_the_queue_was_read_is_not_lost() -> None:
    """The job runs while it is read: of the newest tasks, and of those after them, rows arrive that no record, and
    not the queue as it was, speaks of."""
    headers = [*arrived(0, 1, 2, 3, 4, 5), header(7, 0), header(8, 0)]
    assert found(GOOD, headers) == []
    assert any("t7.solver lost all but 1" in one for one in found([*GOOD, TasksIssued(first=8, count=1)], headers))


def test_a_group_that_came_or_was_judged_later_is_not_passed_over() -> None:
    later = [*arrived(0, 1, 2, 3, 5, 6), *arrived(4, 7)]
    assert found([*GOOD, grant(2, 5, 6)], later) == []
    younger = [*arrived(0, 1, 2, 3), *arrived(4, version=1), *arrived(5, 6, 7)]
    assert found([*GOOD, grant(2, 5, 6)], younger) == []
    unjudged: list[Record] = [TasksIssued(first=0, count=6), filtered(2, 3), grant(0, 2, 3), filtered(0, 1)]
    assert found(unjudged, [*arrived(2, 3, version=1), *arrived(0, 1, 4, 5)]) == []


def test_what_nothing_has_become_of_is_counted_as_waiting() -> None:
    records: list[Record] = [
        *GOOD,
        filtered(left_out=(5,)),
        GroupsDropped(policy="solver", step=9, dropped=("t6.solver",)),
    ]
    headers = [*arrived(0, 1, 2, 3, 4, 5, 6), header(7, 0), header(8, 0), header(8, 1, error="x"), *arrived(9, 9)]
    streams = Streams(records=records, headers=headers, queued=frozenset())
    assert judged(streams).waiting == {"solver": 2}, "tasks 4 and 9"
    finished = Streams(
        records=[*records, PolicyFinished(policy="solver", reason="x")], headers=headers, queued=frozenset()
    )
    assert judged(finished).waiting == {}
