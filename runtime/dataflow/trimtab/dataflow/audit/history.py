"""Each policy's steps, as the records tell them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.dataflow.ledger.records import (
    EvaluationEnded,
    EvaluationStarted,
    GroupsDropped,
    GroupsSifted,
    PolicyFinished,
    Record,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    StreamsRouted,
    TasksIssued,
)


@dataclass
class Line:
    """One policy."""

    granted: dict[str, int] = field(default_factory=dict)
    """Groups, and the step that trained on them first."""
    pool: set[str] = field(default_factory=set)
    """Groups that may be replayed."""
    dropped: set[str] = field(default_factory=set)
    filtered: set[str] = field(default_factory=set)
    """Groups of its own stream that the filters left out."""
    step_groups: int = 0
    """Of the step that is being granted."""
    steps: int = 0
    trained: int = 0
    groups: int = 0
    finished: bool = False


Lines = dict[str, Line]


def follow(lines: Lines, record: Record) -> None:
    """What the record makes of the line it speaks of."""
    if isinstance(record, TasksIssued | StreamsRouted | EvaluationStarted | EvaluationEnded):
        return
    line = lines[record.policy]
    match record:
        case StepGranted():
            line.groups += len(record.groups) + len(record.replayed)
            line.step_groups += len(record.groups) + len(record.replayed)
            line.granted |= dict.fromkeys(record.groups, record.step)
            line.pool |= set(record.groups) if record.pooled else set()
            line.pool -= set(record.retired)
            line.dropped.update(record.dropped)
            if record.last:
                line.steps += 1
                line.step_groups = 0
        case GroupsDropped():
            line.dropped.update(record.dropped)
        case GroupsSifted():
            line.filtered.update(record.left_out)
        case StepDurable() | StepTimed() | StepTrained():
            line.trained = max(line.trained, record.step + 1)
        case PolicyFinished():
            line.finished = True


def lines_of(records: Sequence[Record]) -> Lines:
    lines: Lines = defaultdict(Line)
    for record in records:
        follow(lines, record)
    return dict(lines)
