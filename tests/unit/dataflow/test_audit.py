"""The auditor must find what it is there for."""

from __future__ import annotations

import pytest

from tests.unit.dataflow.books import header
from tests.unit.dataflow.jobs import spec
from trimtab.dataflow.audit import Streams, violations
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
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
        ([*GOOD, grant(2, 4, 5)], arrived(*range(8))[:-5], "t5.solver of step 2 has 1 of 2 samples"),
        (GOOD, arrived(0, 1, 2, 3, 4), "task t5 is lost"),
        (GOOD, [*arrived(0, 1, 2, 3, 4), header(5, 0)], "t5.solver lost all but 1"),
        ([*GOOD, grant(2, 4)], arrived(*range(8)), "step 2 has 1 groups, not 2"),
        ([*GOOD, TasksIssued(first=9, count=1)], arrived(*range(8)), "tasks issued from 9 where 8 was due"),
        ([*GOOD, TasksIssued(first=8, count=3)], arrived(*range(8)), "22 samples asked for at version 1, bound 16"),
        ([*GOOD, grant(2, 4, 5), grant(3, 6, 7)], arrived(*range(8)), "step 3 is 3 versions stale, 2 are allowed"),
        (
            [*GOOD, GroupsDropped(policy="solver", step=2, dropped=("t4.solver",))],
            arrived(*range(8)),
            "t4.solver of version 0 lost: not too stale at 2",
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
            [*GOOD, StepTimed(policy="solver", step=2, rank=0, wait_seconds=1.0, step_seconds=2.0, at=1.0)],
            arrived(*range(8)),
            "step 2 was trained before it was granted",
        ),
        ([*GOOD, grant(2, 4, 5)], [*arrived(*range(5), 6, 7), header(5, 0), header(5, 1, error="x")], "failed sample"),
    ],
)
def test_each_violation_is_found(records: list[Record], headers: list[TrajectoryHeader], expected: str) -> None:
    problems = found(records, headers)
    assert any(expected in problem for problem in problems), problems
