"""What happened in a job: its groups as their samples arrived, and each policy's steps as the records tell them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.dataflow.ledger.records import (
    EvaluationEnded,
    EvaluationStarted,
    GroupsDropped,
    GroupsFiltered,
    PolicyFinished,
    Record,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    StreamsRouted,
    TasksIssued,
)
from trimtab.fabric.wire.header import TrajectoryHeader

Groups = dict[str, list[TrajectoryHeader]]
"""Samples by group; of those that arrived twice the first."""


def first_arrivals(headers: Sequence[TrajectoryHeader]) -> Groups:
    groups: Groups = defaultdict(list)
    seen = set()
    for header in headers:
        if header.benchmark is None and sample_key(header) not in seen:
            seen.add(sample_key(header))
            groups[header.group_id].append(header)
    return groups


def deadlines(headers: Sequence[TrajectoryHeader]) -> dict[str, dict[str, tuple[int, int]]]:
    """By policy, complete groups that can be trained, in the order in which they became complete: the version of the
    oldest token, and the place of the last sample in the stream.
    """
    arrived: dict[tuple[str, str], dict[int, TrajectoryHeader]] = defaultdict(dict)
    found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for position, header in enumerate(headers):
        samples = arrived[header.policy, header.group_id]
        if header.benchmark is not None or header.group_index in samples:
            continue
        samples[header.group_index] = header
        if len(samples) == header.group_size and all(one.error is None for one in samples.values()):
            versions = [one.oldest_version for one in samples.values() if one.oldest_version is not None]
            if len(versions) == header.group_size:
                found[header.policy][header.group_id] = min(versions), position
    return found


def sample_key(header: TrajectoryHeader) -> tuple[str, str, int]:
    return header.policy, header.group_id, header.group_index


def oldest_token(samples: Sequence[TrajectoryHeader]) -> int | None:
    return min((header.oldest_version for header in samples if header.oldest_version is not None), default=None)


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
        case GroupsFiltered():
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
