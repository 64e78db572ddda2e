"""Reads everything that a job has written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from trimtab.dataflow.ledger.newer_records import UnknownRecord, read_record
from trimtab.dataflow.ledger.records import Record
from trimtab.dataflow.work_queue import queued as queued_messages
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.column import ColumnHeader, parse_column_headers
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.task import Task

_BATCH = 512
_DEADLINE_S = 30.0
M = TypeVar("M", bound=Message)


class StreamTrimmed(RuntimeError):
    """The job has deleted what it no longer needs: only a mirror made before it began can be audited."""


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Everything a job has written down."""

    records: Sequence[Record]
    headers: Sequence[TrajectoryHeader]
    queued: frozenset[str]
    """Tasks on the work queue."""
    trajectory_ids: Sequence[str] = ()
    """Of the headers."""
    columns: Sequence[tuple[int, ColumnHeader]] = ()
    """With where they lie."""
    asked: frozenset[str] = frozenset()
    """Tasks of stages on their work queue."""
    unreadable: Sequence[str] = ()


async def read_streams(
    bus: Bus,
    topology: JobTopology,
    *,
    ledger: str | None = None,
    trajectories: str | None = None,
    columns: str | None = None,
) -> Streams:
    """Ledger first, then columns, trajectories last: what a record or a column speaks of has arrived by then, also
    while the job runs.

    `ledger`, `trajectories` and `columns` name mirrors to read in place of the job's own streams. Raises StreamTrimmed.
    """
    records: list[Record] = []
    unreadable: list[str] = []
    for delivery in await _everything(bus, ledger or topology.ledger.name, headers_only=False):
        try:
            record = read_record(delivery)
        except (WireError, UnknownRecord) as error:
            unreadable.append(f"record {delivery.sequence} is unreadable: {error}")
            continue
        if isinstance(record, Record):
            records.append(record)
    queued = frozenset(one.message.task_id for one in await queued_messages(bus, topology.tasks.name, Task))
    said: list[tuple[int, ColumnHeader]] = []
    asked: frozenset[str] = frozenset()
    if topology.stages:
        # What is answered leaves the queue after the answer is there.
        asked = frozenset(
            one.message.task_id for one in await queued_messages(bus, topology.stage_tasks.name, StageTask)
        )
        for delivery in await _everything(bus, columns or topology.columns.name, headers_only=True):
            try:
                said.append((delivery.sequence, parse_column_headers(delivery.headers)))
            except WireError as error:
                unreadable.append(f"column {delivery.sequence} is unreadable: {error}")
    headers: list[TrajectoryHeader] = []
    trajectory_ids: list[str] = []
    for delivery in await _everything(bus, trajectories or topology.trajectories.name, headers_only=True):
        try:
            trajectory_id, header = parse_headers(delivery.headers)
        except WireError as error:
            unreadable.append(f"trajectory {delivery.sequence} is unreadable: {error}")
            continue
        headers.append(header)
        trajectory_ids.append(trajectory_id)
    return Streams(
        records=records,
        headers=headers,
        queued=queued,
        trajectory_ids=trajectory_ids,
        columns=said,
        asked=asked,
        unreadable=unreadable,
    )


async def _everything(bus: Bus, stream: str, *, headers_only: bool) -> list[Delivery]:
    found: list[Delivery] = []
    async with StreamReader(bus, stream=stream, headers_only=headers_only) as reader:
        while not reader.caught_up:
            found += await reader.read(batch=_BATCH, wait_s=_DEADLINE_S)
    if found and found[0].sequence != 1:
        raise StreamTrimmed(f"{stream} begins with message {found[0].sequence}; mirror it before the job starts")
    return found
