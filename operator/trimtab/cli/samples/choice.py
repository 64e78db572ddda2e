"""Which of a job's rows are shown, chosen by what their headers say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.dataflow.audit.granted_steps import Steps
from trimtab.dataflow.audit.history import trained_on
from trimtab.fabric.wire.header import TrajectoryHeader


class Order(StrEnum):
    NEWEST = "newest"
    BEST = "best"
    WORST = "worst"


@dataclass(frozen=True, kw_only=True)
class StoredRow:
    """`step` is counted from 1, as people are told it; None where no step has trained on the row, or none that the
    ledger still knows.
    """

    sequence: int
    trajectory_id: str
    header: TrajectoryHeader
    step: int | None = None
    archived_in: str | None = None
    """The object of the archive that has it; None for a row of the stream."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    policy: str | None = None
    step: int | None = None
    benchmark: str | None = None
    """Rows of its evaluation in place of those of training."""
    order: Order = Order.NEWEST
    limit: int | None = None


class NothingChosen(ValueError):
    """No row is as wanted; the message says which there are."""


def with_steps(rows: Sequence[tuple[int, str, TrajectoryHeader]], steps: Steps) -> list[StoredRow]:
    """A task that was repeated has rows of several runs, of which one is trained."""
    headers = [header for _, _, header in rows]
    trained = {id(header) for group in trained_on(headers).values() for header in group.rows}
    found = []
    for sequence, trajectory_id, header in rows:
        step = steps.get((header.policy, header.group_id)) if id(header) in trained else None
        found.append(
            StoredRow(
                sequence=sequence,
                trajectory_id=trajectory_id,
                header=header,
                step=None if step is None else step + 1,
            )
        )
    return found


def chosen(rows: Sequence[StoredRow], wanted: Wanted, *, archived: Collection[int] = ()) -> list[StoredRow]:
    """In the order that is wanted: of equal reward the newest first. Raises NothingChosen, which also names the steps
    that are `archived`.
    """
    # An episode in which the role said nothing has no text.
    there = [row for row in rows if row.header.parts]
    if wanted.policy is not None and not any(row.header.policy == wanted.policy for row in there):
        raise NothingChosen(f"there is no row of {wanted.policy}; there are those of {_listed(there)}")
    there = [row for row in there if wanted.policy in (None, row.header.policy)]
    if wanted.benchmark is not None:
        benchmarks = sorted({row.header.benchmark for row in there if row.header.benchmark is not None})
        there = [row for row in there if row.header.benchmark == wanted.benchmark]
        if not there:
            of = ", ".join(benchmarks) or "none"
            raise NothingChosen(
                f"there is no row of the benchmark {wanted.benchmark} in the stream, and data.archive has none; there"
                f" are those of {of}"
            )
        if wanted.step is not None:
            raise NothingChosen("no step is trained on answers of an evaluation; leave out the step or the benchmark")
    else:
        there = [row for row in there if row.header.benchmark is None]
    if wanted.step is not None:
        there = _of_step(there, wanted.step, archived)
    if wanted.order is not Order.NEWEST:
        there = [row for row in there if row.header.reward is not None]
    if not there:
        raise NothingChosen("there is no such row: none has come yet, or all were let go, and none is in data.archive")
    sign = {Order.NEWEST: 0.0, Order.BEST: -1.0, Order.WORST: 1.0}[wanted.order]
    there.sort(key=lambda row: (sign * (row.header.reward or 0.0), -row.sequence))
    return there if wanted.limit is None else there[: wanted.limit]


def _of_step(rows: Sequence[StoredRow], step: int, archived: Collection[int]) -> list[StoredRow]:
    found = [row for row in rows if row.step == step]
    if not found:
        known = sorted({row.step for row in rows if row.step is not None}.union(archived))
        others = f"there are those of steps {known[0]} to {known[-1]}" if known else "there are none of any step"
        raise NothingChosen(f"no row that step {step} was trained on is in the stream or in data.archive; {others}")
    return found


def _listed(rows: Sequence[StoredRow]) -> str:
    return ", ".join(sorted({row.header.policy for row in rows})) or "none"
