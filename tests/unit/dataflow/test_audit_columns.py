"""The auditor must find what stages were not asked, what was trained without them, and what they had given up."""

from __future__ import annotations

from typing import Any

from tests.support.dataflow.books import GROUP, header
from tests.support.dataflow.jobs import spec
from tests.support.dataflow.stages import column, stage
from trimtab.dataflow.audit.columns import staged_histories
from trimtab.dataflow.audit.report import AuditReport, judged
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.ledger.records import Record, StepGranted, TasksIssued, TrainerAttempt
from trimtab.fabric.wire.column import ColumnHeader

REFERENCE = stage("reference")
GRADE = stage("grade", "Reward", needs=["reference"])
SIFT = stage("sift", "Filter")
STAGES = (REFERENCE, GRADE)


def ids(task: int) -> tuple[str, ...]:
    return tuple(f"t{task}.solver.{index}.0" for index in range(GROUP))


def said(name: str, task: int, rows: tuple[str, ...] | None = None, **more: Any) -> ColumnHeader:
    if name == "grade" and "error" not in more:
        more.setdefault("rewards", [0.5, 1.0])
    return column(name, f"t{task}.solver", ids(task) if rows is None else rows, **more)


def grant(step: int, *tasks: int) -> StepGranted:
    return StepGranted(policy="solver", step=step, groups=tuple(f"t{task}.solver" for task in tasks), granted_at=1.0)


def streams(records: list[Record], *columns: ColumnHeader, tasks: int = 4, asked: tuple[str, ...] = ()) -> Streams:
    headers = [header(task, index) for task in range(tasks) for index in range(GROUP)]
    return Streams(
        records=[TasksIssued(first=0, count=tasks), *records],
        headers=headers,
        trajectory_ids=[row for task in range(tasks) for row in ids(task)],
        columns=list(enumerate(columns, start=1)),
        queued=frozenset(),
        asked=frozenset(asked),
    )


def report(found: Streams, stages: Any = STAGES) -> AuditReport:
    return judged(found, data=spec().data, stages=stages)


ALL = [said(name, task) for task in range(4) for name in ("reference", "grade")]


def test_a_good_run_has_no_violations() -> None:
    good = report(streams([grant(0, 0, 1), grant(1, 2, 3)], *ALL))
    assert good.violations == []
    assert (good.columns, good.columns_beside, good.staged, list(good.unasked)) == (8, 0, 0, [])


def test_columns_that_do_not_count_are_harmless() -> None:
    twice = report(streams([grant(0, 0, 1)], said("reference", 0, ids(1)), *ALL, said("grade", 0, run="late")))
    assert twice.violations == []
    assert (twice.columns, twice.columns_beside) == (10, 2)


def test_what_was_trained_without_a_column_is_found() -> None:
    (problem,) = report(streams([grant(0, 0, 1)], *ALL[:3])).violations
    assert problem == "solver: group t1.solver of step 0 was trained with the columns of ['reference'] alone"


def test_what_a_stage_had_given_up_or_left_out_may_not_be_trained() -> None:
    failed = [*ALL[:2], said("reference", 1, error="engine.dead"), *ALL[3:]]
    assert any(
        "t1.solver of step 0 was given up by stage reference" in one
        for one in report(streams([grant(0, 0, 1)], *failed)).violations
    )
    left_out = [said("sift", 0, keep=[False, False]), *(said("sift", task, keep=[True, False]) for task in (1, 2, 3))]
    found = report(streams([grant(0, 0, 1)], *left_out), (SIFT,)).violations
    assert any("t0.solver of step 0 was left out by stage sift" in one for one in found)


def test_a_group_that_was_available_first_may_not_be_passed_over() -> None:
    found = report(streams([grant(0, 1, 2)], *ALL)).violations
    assert any("t0.solver of version 0 passed over by step 0" in one for one in found)
    later = [*ALL[2:], *ALL[:2]]
    assert report(streams([grant(0, 1, 2)], *later)).violations == [], "its columns came last"


def test_what_waits_for_a_stage_is_asked_or_lost() -> None:
    waiting = streams([], said("reference", 0), asked=("t0.solver.grade", "t1.solver.reference"), tasks=3)
    found = report(waiting)
    assert found.staged == 3
    assert list(found.unasked) == ["solver: group t2.solver is lost: stage reference is not asked about it"]
    assert found.waiting == {}


def test_rows_that_a_filter_left_out_are_not_asked_about_behind_it() -> None:
    stages = (SIFT, stage("values", "Values", needs=["sift"]))
    kept = said("sift", 0, keep=[False, True])
    histories = staged_histories(streams([], kept, said("values", 0), said("values", 0, ids(0)[1:])), stages)
    assert histories["t0.solver"].taken["values"][0] == 3, "the one of both rows is not what was asked for"
    assert histories["t0.solver"].kept(stages) == ids(0)[1:]


def test_groups_that_stages_gave_up_make_room_for_others() -> None:
    data = spec().data
    bound = (data.max_staleness + 1) * data.batch_size // data.group_size
    failed = [said("reference", task, error="engine.dead") for task in range(2)]
    more: list[Record] = [TrainerAttempt(policy="solver", attempt=0), TasksIssued(first=4, count=bound - 2)]
    assert report(streams(more, *failed)).violations == []
    assert any("episodes asked for" in one for one in report(streams(more)).violations)
