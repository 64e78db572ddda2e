"""What happened in a job: its groups as their rows arrived, and each policy's steps as the records tell them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.dataflow.ledger.records import (
    EvaluationEnded,
    EvaluationStarted,
    GroupsDropped,
    GroupsFiltered,
    LedgerAnchoredAnew,
    PolicyContinued,
    PolicyFinished,
    Record,
    SettingsTaken,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    StreamsRouted,
    TasksIssued,
)
from trimtab.fabric.wire.header import TrajectoryHeader


@dataclass(kw_only=True)
class GroupHistory:
    """One group as the stream has it. Of each episode those rows count whose run was the first to be whole."""

    policy: str
    task_id: str
    size: int
    episodes: dict[int, dict[int, TrajectoryHeader]] = field(default_factory=dict)
    """By index, the rows of closed ones by their place in the stream: none for one that is empty, and the failure of
    one that failed.
    """
    closed_at: int = -1
    """Place of what closed the latest of them."""
    beside: int = 0
    """Rows that are of no episode: stored twice, too late, or of a run that another one was quicker than."""
    _begun: dict[tuple[int, str], dict[int, tuple[int, TrajectoryHeader]]] = field(default_factory=dict)
    """By index and run, its rows by part."""

    def add(self, place: int, header: TrajectoryHeader) -> None:
        index = header.group_index
        begun = self._begun.setdefault((index, header.run), {})
        if index in self.episodes or header.part in begun:
            self.beside += 1
            return
        if begun and next(iter(begun.values()))[1].parts != header.parts:
            self.beside += 1
            return
        begun[header.part] = place, header
        if header.error is None and len(begun) < header.parts:
            return
        whole = {} if header.parts == 0 else {place: header} if header.error is not None else dict(begun.values())
        self.episodes[index] = whole
        self.closed_at = place
        for key in [key for key in self._begun if key[0] == index]:
            self.beside += len(self._begun.pop(key))
        self.beside -= max(1, len(whole))

    @property
    def is_complete(self) -> bool:
        return len(self.episodes) == self.size

    @property
    def failed(self) -> bool:
        return any(row.error is not None for row in self.rows)

    @property
    def is_empty(self) -> bool:
        return self.is_complete and not self.rows

    @property
    def rows(self) -> list[TrajectoryHeader]:
        return [row for rows in self.episodes.values() for row in rows.values()]

    @property
    def trained_episodes(self) -> int:
        return sum(1 for rows in self.episodes.values() if rows)


Groups = dict[str, GroupHistory]


def histories(headers: Sequence[TrajectoryHeader]) -> dict[tuple[str, str], GroupHistory]:
    """By policy and group, those of evaluations included."""
    found: dict[tuple[str, str], GroupHistory] = {}
    for place, header in enumerate(headers):
        key = header.policy, header.group_id
        if key not in found:
            found[key] = GroupHistory(policy=header.policy, task_id=header.task_id, size=header.group_size)
        found[key].add(place, header)
    return found


def trained_on(headers: Sequence[TrajectoryHeader]) -> Groups:
    """Groups of training alone."""
    return {
        group_id: group
        for (_, group_id), group in histories([header for header in headers if header.benchmark is None]).items()
    }


def deadlines(headers: Sequence[TrajectoryHeader]) -> dict[str, dict[str, tuple[int, int]]]:
    """By policy, complete groups that can be trained, in the order in which they became complete: the version of the
    oldest token, and the place of the last row in the stream.
    """
    found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    complete = [(group.closed_at, group_id, group) for group_id, group in trained_on(headers).items()]
    for closed_at, group_id, group in sorted(complete, key=lambda one: one[0]):
        rows = group.rows
        versions = [row.oldest_version for row in rows if row.oldest_version is not None]
        if group.is_complete and rows and not group.failed and len(versions) == len(rows):
            found[group.policy][group_id] = min(versions), closed_at
    return found


def oldest_token(rows: Sequence[TrajectoryHeader]) -> int | None:
    return min((header.oldest_version for header in rows if header.oldest_version is not None), default=None)


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
    first_task: int = 0
    """Groups of tasks before it were given up: none of them may be granted any more."""
    finished: bool = False


Lines = dict[str, Line]


def follow(lines: Lines, record: Record) -> None:
    """What the record makes of the line it speaks of."""
    if isinstance(record, TasksIssued | StreamsRouted | SettingsTaken | EvaluationStarted | EvaluationEnded):
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
        case PolicyContinued():
            line.finished = False
        case LedgerAnchoredAnew():
            line.steps = line.trained = record.step
            line.step_groups, line.pool, line.finished = 0, set(), False
            for other in lines.values():
                other.first_task = record.issued


def lines_of(records: Sequence[Record]) -> Lines:
    lines: Lines = defaultdict(Line)
    for record in records:
        follow(lines, record)
    return dict(lines)
