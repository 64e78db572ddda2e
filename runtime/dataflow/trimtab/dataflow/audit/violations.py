"""What is wrong with a job's streams, if anything: pure functions of what they hold."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from trimtab.api.data import Data
from trimtab.api.stage import Stage
from trimtab.dataflow.audit.columns import Histories, available, staged_histories, wrong_columns
from trimtab.dataflow.audit.history import (
    GroupHistory,
    Groups,
    Line,
    Lines,
    follow,
    lines_of,
    oldest_token,
    trained_on,
)
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    GroupsFiltered,
    LedgerAnchoredAnew,
    Record,
    SettingsTaken,
    StepDurable,
    StepGranted,
    StepTimed,
    TasksIssued,
)
from trimtab.dataflow.ledger.task_ids import parse_group_id, task_id


def violations(
    streams: Streams,
    *,
    data: Data | None = None,
    batch_sizes: Mapping[str, int] | None = None,
    stages: Sequence[Stage] = (),
) -> list[str]:
    """One sentence each; empty when all is well. Staleness and admission only when `data` says what was promised, with
    `batch_sizes` for the policies that have their own. `stages` are those of the manifest.
    """
    groups = trained_on(streams.headers)
    histories = staged_histories(streams, stages)
    in_order = data is None or (not data.mix and data.selection is None)
    return [
        *streams.unreadable,
        *_misnumbered(streams.records),
        *_wrong_steps(streams.records, groups, data=data, batch_sizes=batch_sizes or {}),
        *_lost_tasks(streams, groups),
        *wrong_columns(streams, histories),
        *(passed_over(streams, histories) if in_order else ()),
        *([] if data is None else _admitted_too_much(streams.records, groups, histories, data, batch_sizes or {})),
    ]


def _misnumbered(records: Sequence[Record]) -> Iterable[str]:
    issued = 0
    lines: Lines = defaultdict(Line)
    for record in records:
        match record:
            case TasksIssued():
                if record.first != issued:
                    yield f"tasks issued from {record.first} where {issued} was due"
                issued = record.first + record.count
            case LedgerAnchoredAnew():
                if record.issued < issued:
                    yield f"anchored at task {record.issued} where {issued} was due"
                issued = record.issued
            case StepGranted():
                line = lines[record.policy]
                if record.step != line.steps:
                    yield f"{record.policy}: step {record.step} granted where {line.steps} was due"
                    line.steps = record.step
                if line.finished:
                    yield f"{record.policy}: step {record.step} granted after the policy was finished"
            case StepDurable() | StepTimed():
                if record.step >= lines[record.policy].steps:
                    yield f"{record.policy}: step {record.step} was trained before it was granted"
        follow(lines, record)


def _wrong_steps(
    records: Sequence[Record], groups: Groups, *, data: Data | None, batch_sizes: Mapping[str, int]
) -> Iterable[str]:
    lines: Lines = defaultdict(Line)
    # Where nothing says what was promised, all steps of a policy are as large as its first.
    firsts: dict[str, int] = {}
    void = _without_rows(records)
    resized: set[str] = set()
    for number, record in enumerate(records):
        if number in void:
            follow(lines, record)
            continue
        if isinstance(record, SettingsTaken):
            data, batch_sizes = _with(record, data), record.batch_sizes
            firsts.clear()
            resized |= {policy for policy, line in lines.items() if line.step_groups}
        if isinstance(record, GroupsFiltered):
            yield from _wrong_verdicts(lines, record)
        if isinstance(record, GroupsDropped | StepGranted):
            yield from _wrongly_dropped(lines, record, groups, data=data)
        if isinstance(record, StepGranted):
            yield from _wrong_grant(lines, record, groups, data=data)
            size = lines[record.policy].step_groups + len(record.groups) + len(record.replayed)
            wanted = firsts.setdefault(record.policy, size) if record.last else size
            if data is not None:
                wanted = batch_sizes.get(record.policy, data.batch_size) // data.group_size
            # A step that was granted in part before its size was changed may have had more than it has now.
            if record.last and size != wanted and record.policy not in resized:
                yield f"{record.policy}: step {record.step} has {size} groups, not {wanted}"
            if record.last:
                resized.discard(record.policy)
        follow(lines, record)


def _without_rows(records: Sequence[Record]) -> frozenset[int]:
    """Places of those that were taken back because rows of theirs were lost."""
    first: dict[str, int] = {}
    found = set()
    for number, record in reversed(list(enumerate(records))):
        if isinstance(record, LedgerAnchoredAnew):
            first = {**first, record.policy: record.step} if record.lost_rows else {}
        elif isinstance(record, StepGranted | GroupsDropped) and first.get(record.policy, math.inf) <= record.step:
            found.add(number)
    return frozenset(found)


def _with(record: SettingsTaken, data: Data | None) -> Data | None:
    return None if data is None else data.model_copy(update={"max_staleness": record.max_staleness})


def _wrong_verdicts(lines: Lines, record: GroupsFiltered) -> Iterable[str]:
    """Filters are asked before anyone is given a group."""
    for group_id in (*record.kept, *(reduced.group_id for reduced in record.reduced), *record.left_out):
        if group_id in lines[record.policy].filtered or any(
            group_id in line.granted or group_id in line.dropped for line in lines.values()
        ):
            yield f"{record.policy}: group {group_id} was judged by the filters after it had ended"


def _wrongly_dropped(
    lines: Lines, record: GroupsDropped | StepGranted, groups: Groups, *, data: Data | None
) -> Iterable[str]:
    line = lines[record.policy]
    for group_id in record.dropped:
        if group_id in line.granted or group_id in line.dropped:
            yield f"{record.policy}: group {group_id} dropped after it was granted or dropped"
        stale = _staleness(lines, record, groups.get(group_id))
        if data is not None and stale is not None and stale <= data.max_staleness:
            yield f"{record.policy}: group {group_id} lost: {stale} versions stale at step {record.step}"


def _wrong_grant(lines: Lines, record: StepGranted, groups: Groups, *, data: Data | None) -> Iterable[str]:
    line = lines[record.policy]
    filtered = {group_id for other in lines.values() for group_id in other.filtered}
    for group_id in record.groups:
        if group_id in line.granted:
            first = line.granted[group_id]
            yield f"{record.policy}: group {group_id} trained twice, in steps {first} and {record.step}"
        if _number(group_id) < line.first_task:
            yield f"{record.policy}: group {group_id} trained in step {record.step} after all before it were given up"
        if group_id in line.dropped or group_id in filtered:
            yield f"{record.policy}: group {group_id} trained in step {record.step} after it was given up"
        bound = None if data is None else data.max_staleness
        yield from _wrong_group(lines, record, group_id, groups.get(group_id), bound=bound)
    for group_id in record.replayed:
        if group_id not in line.pool:
            yield f"{record.policy}: group {group_id} replayed in step {record.step}, and is not in the pool"
        bound = data.replay.max_age if data is not None and data.replay is not None else None
        yield from _wrong_group(lines, record, group_id, groups.get(group_id), bound=bound)


def _wrong_group(
    lines: Lines, record: StepGranted, group_id: str, group: GroupHistory | None, *, bound: int | None
) -> Iterable[str]:
    where = f"{record.policy}: group {group_id} of step {record.step}"
    if group is None:
        yield f"{where} never arrived"
        return
    if not group.is_complete:
        yield f"{where} has {len(group.episodes)} of {group.size} episodes"
    if group.failed:
        yield f"{where} holds a failed episode"
    if group.is_empty:
        yield f"{where} has no row"
    stale = _staleness(lines, record, group)
    if bound is not None and stale is not None and stale > bound:
        yield f"{where} is {stale} versions stale, {bound} are allowed"


def _staleness(lines: Lines, record: StepGranted | GroupsDropped, group: GroupHistory | None) -> int | None:
    """On the oldest trained token, against the version that trains it, or the newest of the policy it comes from."""
    oldest = None if group is None else oldest_token(group.rows)
    if group is None or oldest is None:
        return None
    return (record.step if group.policy == record.policy else lines[group.policy].trained) - oldest


def _lost_tasks(streams: Streams, groups: Groups) -> Iterable[str]:
    """A task leaves the queue when all its rows are stored. The newest may be recorded and not yet on it; rows of later
    ones may have arrived after the queue was read.
    """
    issues = [record for record in streams.records if isinstance(record, TasksIssued)]
    first = _first_task(streams.records)
    arrived = {header.task_id for header in streams.headers}
    sent = {number for issue in issues[:-1] for number in range(max(first, issue.first), issue.first + issue.count)}
    for number in sorted(sent):
        if task_id(number) not in arrived and task_id(number) not in streams.queued:
            yield f"task {task_id(number)} is lost: neither queued nor arrived"
    for group_id, group in groups.items():
        if not group.is_complete and group.task_id not in streams.queued and _number(group_id) in sent:
            where = f"{group.policy}: group {group_id}"
            yield f"{where} lost all but {len(group.episodes)} episodes, and its task is not queued"


def _first_task(records: Sequence[Record]) -> int:
    """Those before it were given up, the last time that ledger and checkpoints did not meet."""
    return max((record.issued for record in records if isinstance(record, LedgerAnchoredAnew)), default=0)


def _number(group_id: str) -> int:
    place = parse_group_id(group_id)
    return -1 if place is None else place[0]


def _admitted_too_much(
    records: Sequence[Record], groups: Groups, histories: Histories, data: Data, batch_sizes: Mapping[str, int]
) -> Iterable[str]:
    """At most (maxStaleness + version + 1) batches asked for and not given up, for the policy that is furthest. Where
    filters leave groups out, as many more are asked for as are expected to be, and a mix asks for what the neediest
    stream of a trainer needs. Where ledger and checkpoints once did not meet it is not judged: part of what was asked
    for is not known. Nor is it from where the size of steps or the bound was changed: it counts from the beginning.
    """
    if data.filter.zero_advantage == "Drop" or data.mix or data.selection is not None or _first_task(records):
        return
    ended = Counter(group.policy for group in groups.values() if group.failed or group.is_empty)
    ended.update(groups[group_id].policy for group_id, one in histories.items() if one.over and one.done_at is None)
    lines: Lines = {policy: Line() for policy in lines_of(records)} or {"": Line()}
    for record in records:
        if isinstance(record, SettingsTaken):
            if any(line.steps for line in lines.values()):
                return
            data, batch_sizes = data.model_copy(update={"max_staleness": record.max_staleness}), record.batch_sizes
        if isinstance(record, TasksIssued):
            asked = (record.first + record.count) * data.group_size
            for policy, line in lines.items():
                given_up = (ended[policy] + len(line.dropped) + len(line.filtered)) * data.group_size
                bound = (data.max_staleness + line.trained + 1) * batch_sizes.get(policy, data.batch_size)
                if not line.finished and asked - given_up > bound:
                    yield f"{policy}: {asked - given_up} episodes asked for at version {line.trained}, bound {bound}"
        follow(lines, record)


def passed_over(streams: Streams, histories: Histories) -> Iterable[str]:
    """Groups that were forgotten: only the order of deadlines tells them from groups that still wait. It holds for jobs
    in which every trainer takes its own stream in that order, as they do without mix.
    """
    for policy, own_deadlines in available(streams, histories).items():
        own = [
            record
            for record in streams.records
            if getattr(record, "policy", None) == policy or isinstance(record, LedgerAnchoredAnew)
        ]
        yield from _passed_over_by(policy, own, own_deadlines)


def _passed_over_by(policy: str, records: Sequence[Record], deadlines: Mapping[str, tuple[int, int]]) -> Iterable[str]:
    """Filters are asked in the order of arrival, and batches are made earliest deadline first: a group that was there
    when one behind it was taken has been forgotten. Without filters, all was there that arrived before the newest group
    of a step.
    """
    has_filters = any(isinstance(record, GroupsFiltered) for record in records)
    arriving = deque(deadlines)
    there: dict[str, tuple[int, int]] = {}
    gone: set[str] = set()

    def arrived(*before: str) -> Iterable[str]:
        newest = max((deadlines[group_id][1] for group_id in before if group_id in deadlines), default=-1)
        while arriving and deadlines[arriving[0]][1] <= newest:
            yield arriving.popleft()

    for record in records:
        if isinstance(record, LedgerAnchoredAnew):
            gone.update(group_id for group_id in deadlines if _number(group_id) < record.issued)
            there = {group_id: deadline for group_id, deadline in there.items() if group_id not in gone}
        if isinstance(record, GroupsFiltered):
            kept = [*record.kept, *(reduced.group_id for reduced in record.reduced)]
            gone.update(record.left_out)
            for group_id in arrived(*kept, *record.left_out):
                if group_id not in kept and group_id not in gone:
                    yield f"{policy}: group {group_id} passed over by the filters"
            there |= {group_id: deadlines[group_id] for group_id in kept if group_id in deadlines}
        if isinstance(record, GroupsDropped | StepGranted):
            gone.update(record.dropped)
        if isinstance(record, StepGranted):
            gone.update(record.groups)
            there |= {} if has_filters else {group_id: deadlines[group_id] for group_id in arrived(*record.groups)}
            there = {group_id: deadline for group_id, deadline in there.items() if group_id not in gone}
            latest = max((deadlines[group_id] for group_id in record.groups if group_id in deadlines), default=(-1, -1))
            for group_id in [group_id for group_id, deadline in there.items() if deadline < latest]:
                version, _ = there.pop(group_id)
                yield f"{policy}: group {group_id} of version {version} passed over by step {record.step}"
