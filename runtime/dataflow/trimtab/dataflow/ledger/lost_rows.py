"""How the books go on when the stream of trajectories has lost rows that were acknowledged, as by a loss of power, or
the ledger records of its middle, as by a damaged file.

Three things show it at recovery. A record speaks of groups that are not there, or does not follow the one before it: it
and what follows it is void, up to the record by which the books went on. Or a task has left the queue, which it does
when all its rows are stored, and they are not: nobody would ever bring them. Either way all that is under way is given
up, and every policy goes on behind its last durable step; one whose trainer has a later checkpoint proves that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import structlog

from trimtab.dataflow.ledger.awaited_tasks import unended, unseen
from trimtab.dataflow.ledger.chain import Hole
from trimtab.dataflow.ledger.errors import RowsGone
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    GroupsFiltered,
    LedgerAnchoredAnew,
    PolicyFinished,
    Record,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    TasksIssued,
)
from trimtab.dataflow.ledger.task_ids import task_id

_log = structlog.get_logger(__name__)
_TASKS_PER_SECOND = 1 << 20
"""More than are issued, however short the time."""
_OF_GROUPS = (
    TasksIssued | StepGranted | StepTimed | StepTrained | StepDurable | GroupsDropped | GroupsFiltered | PolicyFinished
)
"""Records that follow from groups. The others stand by themselves."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What the streams still have of what the ledger speaks of."""

    queued: frozenset[str]
    """Ids of the tasks that wait, or that a worker has."""
    gone: str | None
    """What is not there, in words."""


def replay(ledger: Ledger, records: Iterable[Record | Hole], *, gone: str | None) -> str | None:
    """Apply all that still count. `gone` is what the snapshot before them has lost; gives what is lost after them."""
    for record in records:
        if isinstance(record, Hole):
            # What follows was decided by somebody who knew what is gone.
            gone = str(record)
            continue
        if isinstance(record, LedgerAnchoredAnew):
            gone = None
        if gone is not None and isinstance(record, _OF_GROUPS):
            continue
        try:
            ledger.apply(record)
        except RowsGone as error:
            gone = str(error)
    return gone


def lost_tasks(ledger: Ledger, queued: Container[str]) -> list[int]:
    """Tasks that are neither queued nor at their end, and are not sent again either."""
    again = frozenset(unseen(ledger, ledger.newest_tasks))
    return [number for number in unended(ledger) if number not in again and task_id(number) not in queued]


def given_up(ledger: Ledger, remains: Remains, *, now: float) -> list[LedgerAnchoredAnew]:
    """The records by which the books go on; none where nothing was lost."""
    tasks = lost_tasks(ledger, remains.queued)
    if remains.gone is None and not tasks:
        return []
    _log.error("rows_lost", lost=remains.gone or f"rows of {len(tasks)} tasks, of {task_id(tasks[0])} first")
    issued, unused = never_issued(ledger, now=now), ledger.unused_groups()
    books = [one for one in ledger.trainers.values() if one.finished is None or one.granted]
    return [
        LedgerAnchoredAnew(
            policy=one.policy,
            step=one.durable_steps,
            was_at=one.next_step,
            issued=issued,
            given_up=unused if one is books[0] else 0,
            at=now,
            lost_rows=True,
        )
        for one in books
    ]


def never_issued(ledger: Ledger, *, now: float) -> int:
    """The number of a task that comes after all that were ever issued.

    What was lost may have held such a record itself, and steps after it, so it cannot be told from the books: numbers
    follow the clock. Where that is behind the books, somebody has put it back, and what can be done is to leave room.
    """
    by_clock = int(now * _TASKS_PER_SECOND)
    return by_clock if by_clock >= ledger.issued else ledger.issued + _TASKS_PER_SECOND
