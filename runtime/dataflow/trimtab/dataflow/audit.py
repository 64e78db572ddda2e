"""Checks a job's streams against what must never happen, with nothing but the streams: no sample lost, none trained
twice, none trained too stale. It shares no state with the ledger it audits.
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.api.data import Data
from trimtab.dataflow.ledger.records import (
    RECORDS,
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
from trimtab.dataflow.ledger.task_ids import task_id
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.task import Task

_BATCH = 512
_DEADLINE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    violations: list[str]
    trained: dict[str, int]
    """Samples granted, by policy."""
    arrived: int
    duplicates_seen: int
    """Trajectories that had arrived before: stored twice, to be trained once."""
    steps: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Everything a job has written down."""

    records: Sequence[Record]
    headers: Sequence[TrajectoryHeader]
    queued: frozenset[str]
    """Tasks on the work queue."""
    unreadable: Sequence[str] = ()


@dataclass
class _Line:
    """One policy's steps, as the records tell them."""

    granted: dict[str, int] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    filtered: set[str] = field(default_factory=set)
    steps: int = 0
    trained: int = 0
    samples: int = 0
    finished: bool = False


async def audit(bus: Bus, topology: JobTopology, *, data: Data | None = None) -> AuditReport:
    """Read the job's streams and judge them; staleness and admission only when `data` says what was promised."""
    streams = await read_streams(bus, topology)
    lines = _lines(streams.records)
    return AuditReport(
        violations=violations(streams, data=data),
        trained={policy: line.samples * _group_size(streams) for policy, line in lines.items()},
        arrived=len(streams.headers),
        duplicates_seen=len(streams.headers) - len({_place(header) for header in streams.headers}),
        steps={policy: line.steps for policy, line in lines.items()},
    )


async def read_streams(bus: Bus, topology: JobTopology) -> Streams:
    """Ledger first, trajectories last: what a record speaks of has arrived by then, also while the job runs."""
    records, unreadable = [], []
    async with StreamReader(bus, stream=topology.ledger.name) as reader:
        while not reader.caught_up:
            for delivery in await reader.read(batch=_BATCH, wait_s=_DEADLINE_S):
                record = decode(delivery.payload, *RECORDS)
                assert isinstance(record, Record)
                records.append(record)
    queued = await _queued(bus, topology.tasks.name)
    headers = []
    async with StreamReader(bus, stream=topology.trajectories.name, headers_only=True) as reader:
        while not reader.caught_up:
            for delivery in await reader.read(batch=_BATCH, wait_s=_DEADLINE_S):
                try:
                    headers.append(parse_headers(delivery.headers)[1])
                except WireError as error:
                    unreadable.append(f"trajectory {delivery.sequence} is unreadable: {error}")
    return Streams(records=records, headers=headers, queued=queued, unreadable=unreadable)


async def _queued(bus: Bus, stream: str) -> frozenset[str]:
    """One by one: a work queue has no second consumer, and what is on it is bounded by admission."""
    found: set[str] = set()
    sequence = 1
    while True:
        try:
            answer = await api_call(
                bus, f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": ">"}, deadline_s=_DEADLINE_S
            )
        except BusNotFound:
            return frozenset(found)
        message = answer["message"]
        found.add(decode(base64.b64decode(message["data"]), Task).task_id)
        sequence = int(message["seq"]) + 1


def violations(streams: Streams, *, data: Data | None = None) -> list[str]:
    """What is wrong, one sentence each; empty when all is well."""
    groups = _first_arrivals(streams.headers)
    return [
        *streams.unreadable,
        *_misnumbered(streams.records),
        *_wrong_grants(streams.records, groups, max_staleness=None if data is None else data.max_staleness),
        *_uneven_steps(streams.records, wanted=None if data is None else data.batch_size // data.group_size),
        *_lost_tasks(streams),
        # With groups left out, as many more are asked for as are expected to be.
        *(
            []
            if data is None or data.filter.zero_advantage == "Drop"
            else _admitted_too_much(streams.records, groups, data)
        ),
    ]


def _misnumbered(records: Sequence[Record]) -> Iterable[str]:
    issued = 0
    lines: dict[str, _Line] = defaultdict(_Line)
    for record in records:
        match record:
            case TasksIssued():
                if record.first != issued:
                    yield f"tasks issued from {record.first} where {issued} was due"
                issued = record.first + record.count
            case StepGranted():
                line = lines[record.policy]
                if record.step != line.steps:
                    yield f"{record.policy}: step {record.step} granted where {line.steps} was due"
                if line.finished:
                    yield f"{record.policy}: step {record.step} granted after the policy was finished"
                line.steps = record.step + 1
            case StepDurable() | StepTimed():
                if record.step >= lines[record.policy].steps:
                    yield f"{record.policy}: step {record.step} was trained before it was granted"
            case PolicyFinished():
                lines[record.policy].finished = True


def _wrong_grants(
    records: Sequence[Record],
    groups: Mapping[tuple[str, str], Sequence[TrajectoryHeader]],
    *,
    max_staleness: int | None,
) -> Iterable[str]:
    lines: dict[str, _Line] = defaultdict(_Line)
    for record in records:
        if isinstance(record, GroupsSifted):
            yield from _wrong_verdicts(lines[record.policy], record)
        if isinstance(record, GroupsDropped | StepGranted):
            line = lines[record.policy]
            for group_id in record.dropped:
                if group_id in line.granted or group_id in line.dropped:
                    yield f"{record.policy}: group {group_id} dropped after it was granted or dropped"
                line.dropped.add(group_id)
                oldest = _oldest(groups.get((record.policy, group_id), ()))
                if max_staleness is not None and oldest is not None and record.step - oldest <= max_staleness:
                    yield f"{record.policy}: group {group_id} of version {oldest} lost: not too stale at {record.step}"
        if isinstance(record, StepGranted):
            for group_id in record.groups:
                if group_id in line.granted:
                    yield (
                        f"{record.policy}: group {group_id} trained twice, in steps {line.granted[group_id]}"
                        f" and {record.step}"
                    )
                if group_id in line.dropped or group_id in line.filtered:
                    yield f"{record.policy}: group {group_id} trained in step {record.step} after it was given up"
                line.granted[group_id] = record.step
                yield from _wrong_group(
                    groups.get((record.policy, group_id), ()), group_id, record, max_staleness=max_staleness
                )


def _wrong_verdicts(line: _Line, record: GroupsSifted) -> Iterable[str]:
    for group_id in (*record.kept, *(reduced.group_id for reduced in record.reduced), *record.left_out):
        if group_id in line.granted or group_id in line.dropped or group_id in line.filtered:
            yield f"{record.policy}: group {group_id} was judged by the filters after it had ended"
    line.filtered.update(record.left_out)


def _wrong_group(
    samples: Sequence[TrajectoryHeader], group_id: str, record: StepGranted, *, max_staleness: int | None
) -> Iterable[str]:
    where = f"{record.policy}: group {group_id} of step {record.step}"
    if not samples:
        yield f"{where} never arrived"
        return
    if len(samples) != samples[0].group_size:
        yield f"{where} has {len(samples)} of {samples[0].group_size} samples"
    if any(header.error is not None for header in samples):
        yield f"{where} holds a failed sample"
    oldest = _oldest(samples)
    if max_staleness is not None and oldest is not None and record.step - oldest > max_staleness:
        yield f"{where} is {record.step - oldest} versions stale, {max_staleness} are allowed"


def _uneven_steps(records: Sequence[Record], *, wanted: int | None) -> Iterable[str]:
    for record in records:
        if isinstance(record, StepGranted):
            wanted = len(record.groups) if wanted is None else wanted
            if len(record.groups) != wanted:
                yield f"{record.policy}: step {record.step} has {len(record.groups)} groups, not {wanted}"


def _lost_tasks(streams: Streams) -> Iterable[str]:
    """A task leaves the queue when all its samples are stored. The newest may be recorded and not yet on it."""
    issues = [record for record in streams.records if isinstance(record, TasksIssued)]
    arrived = {header.task_id for header in streams.headers}
    for issue in issues[:-1]:
        for number in range(issue.first, issue.first + issue.count):
            if task_id(number) not in arrived and task_id(number) not in streams.queued:
                yield f"task {task_id(number)} is lost: neither queued nor arrived"
    for (policy, group_id), samples in _first_arrivals(streams.headers).items():
        if len(samples) < samples[0].group_size and samples[0].task_id not in streams.queued:
            yield f"{policy}: group {group_id} lost all but {len(samples)} samples, and its task is not queued"


def _admitted_too_much(
    records: Sequence[Record], groups: Mapping[tuple[str, str], Sequence[TrajectoryHeader]], data: Data
) -> Iterable[str]:
    """At most (maxStaleness + version + 1) batches asked for and not given up, for the policy that is furthest. Where
    filters leave groups out, as many more are asked for as are expected to be.
    """
    if data.filter.zero_advantage == "Drop":
        return
    failed = Counter(
        policy for (policy, _), samples in groups.items() if any(header.error is not None for header in samples)
    )
    lines: dict[str, _Line] = {
        record.policy: _Line() for record in records if not isinstance(record, TasksIssued | StreamsRouted)
    } or {"": _Line()}
    for record in records:
        if isinstance(record, StreamsRouted):
            continue
        if isinstance(record, TasksIssued):
            asked = (record.first + record.count) * data.group_size
            for policy, line in lines.items():
                given_up = (failed[policy] + len(line.dropped) + len(line.filtered)) * data.group_size
                bound = (data.max_staleness + line.trained + 1) * data.batch_size
                if not line.finished and asked - given_up > bound:
                    yield f"{policy}: {asked - given_up} samples asked for at version {line.trained}, bound {bound}"
        else:
            _follow(lines[record.policy], record)


def _lines(records: Sequence[Record]) -> dict[str, _Line]:
    lines: dict[str, _Line] = defaultdict(_Line)
    for record in records:
        if not isinstance(record, TasksIssued | StreamsRouted):
            _follow(lines[record.policy], record)
    return dict(lines)


def _follow(line: _Line, record: Record) -> None:
    match record:
        case StepGranted():
            line.steps += 1
            line.samples += len(record.groups)
            line.dropped.update(record.dropped)
        case GroupsDropped():
            line.dropped.update(record.dropped)
        case GroupsSifted():
            line.filtered.update(record.left_out)
        case StepDurable() | StepTimed() | StepTrained():
            line.trained = max(line.trained, record.step + 1)
        case PolicyFinished():
            line.finished = True


def _first_arrivals(headers: Sequence[TrajectoryHeader]) -> dict[tuple[str, str], list[TrajectoryHeader]]:
    """The samples of each group; of those that arrived twice the first."""
    groups: dict[tuple[str, str], list[TrajectoryHeader]] = defaultdict(list)
    seen = set()
    for header in headers:
        if header.benchmark is None and _place(header) not in seen:
            seen.add(_place(header))
            groups[header.policy, header.group_id].append(header)
    return groups


def _place(header: TrajectoryHeader) -> tuple[str, str, int]:
    return header.policy, header.group_id, header.group_index


def _oldest(samples: Sequence[TrajectoryHeader]) -> int | None:
    return min((header.oldest_version for header in samples if header.oldest_version is not None), default=None)


def _group_size(streams: Streams) -> int:
    return next((header.group_size for header in streams.headers), 0)
