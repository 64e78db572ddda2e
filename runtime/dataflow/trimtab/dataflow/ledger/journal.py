"""The ledger's own stream. The server acknowledges a record before anything that depends on it leaves this process.

Once in a while a snapshot of the ledger takes the place of all records before it, and of all trajectories and columns
that no one will ask for again: what a job keeps follows what is in flight, not how long it has run.

What others have put into the stream is passed over, at recovery and while records are written, and never stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import msgspec
import structlog
import zstandard

from trimtab.dataflow.curators.registry import CuratorState
from trimtab.dataflow.ledger.authorship import HEADER, JournalKey
from trimtab.dataflow.ledger.chain import Chain, Hole
from trimtab.dataflow.ledger.errors import RowsGone
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.lost_rows import Remains, replay
from trimtab.dataflow.ledger.newer_records import passable_headers, read_record
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew, Record, SnapshotPart
from trimtab.dataflow.ledger.snapshot import FORMAT, LedgerSnapshot, Restoration, check_format, unpacked
from trimtab.dataflow.outcomes import column_header_of, header_of
from trimtab.dataflow.work_queue import queued
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusConflict, BusError, BusTimeout, BusUnavailable, NoResponders
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import MESSAGE_ID_HEADER, publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.task import Task

_log = structlog.get_logger(__name__)
_DEADLINE_S = 30.0
_BATCH = 512
PART_BYTES = 512 << 10
# A curator that remembers every prompt of a large source is most of it.
COMPACT_AFTER_BYTES = 256 << 10
# Snapshots cost no more than the records between them, however large they get.
_BYTES_OF_RECORDS_PER_BYTE = 4
_FORMAT_HEADER = "Trimtab-Ledger-Format"
"""Of each record. The first version wrote none."""
_APPEND_ATTEMPTS = 20
_APPEND_BACKOFF = FullJitter(base_s=0.02, cap_s=1.0)
_APPEND_S = 10.0
_STALL_BACKOFF = FullJitter(base_s=0.5, cap_s=10.0)


class AnotherWriter(RuntimeError):
    """Another dataflow process has written to this job's journal: of the two one must end."""


class ForeignFlood(RuntimeError):
    """What is not the dataflow's comes faster than records can be written."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How far recovery has read the streams, and what it had to give up."""

    trajectories: int
    columns: int = 0
    anchored: tuple[LedgerAnchoredAnew, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Superseded:
    """By stream, the number before which a snapshot makes everything superfluous."""

    ledger: int
    trajectories: int
    columns: int

    @classmethod
    def by(cls, snapshot: LedgerSnapshot, *, first: int) -> _Superseded:
        """`first` is the number of its first part."""
        return cls(ledger=first, trajectories=snapshot.floor, columns=snapshot.stages.floor)


@dataclass
class _History:
    """What the stream holds: the newest whole snapshot and the records since."""

    snapshot: LedgerSnapshot | None = None
    records: list[Record | Hole] = field(default_factory=list)
    record_bytes: int = 0
    snapshot_bytes: int = 0
    snapshot_first: int = 0
    """The number of the first part of that snapshot."""
    _parts: list[bytes] = field(default_factory=list)

    def add(self, message: Message, *, sequence: int, size: int) -> None:
        if isinstance(message, SnapshotPart):
            self._add_part(message, sequence=sequence)
            return
        assert isinstance(message, Record)
        self.records.append(message)
        self.record_bytes += size

    def break_off(self, hole: Hole) -> None:
        self.records.append(hole)
        self._parts = []

    def _add_part(self, part: SnapshotPart, *, sequence: int) -> None:
        """The parts of a snapshot are written with nothing in between. If the writer dies, an incomplete one counts for
        nothing.
        """
        self._parts = [*self._parts[: part.number], part.body]
        if len(self._parts) == part.count:
            self.snapshot_bytes = sum(map(len, self._parts))
            self.snapshot = unpacked(b"".join(self._parts))
            self.snapshot_first = sequence - part.count + 1
            self.records, self.record_bytes, self._parts = [], 0, []


class Journal:
    """Writes records in order. The server checks the number of each: of two dataflow processes one fails and recovers.

    `incarnation` keeps their message ids apart: the second's record must be refused, not taken for a repeated one.
    `on_foreign` is called with the number of messages that were found and are not the dataflow's.
    """

    format = FORMAT
    """Of the records that it writes."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        *,
        incarnation: str,
        key: JournalKey,
        on_foreign: Callable[[int], None] = lambda _: None,
        compact_after_bytes: int = COMPACT_AFTER_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._bus = bus
        self._topology = topology
        self._incarnation = incarnation
        self._key = key
        self._on_foreign = on_foreign
        self._foreign = 0
        self._compact_after_bytes = compact_after_bytes
        self._part_bytes = part_bytes
        self._sequence = 0
        self._chain = Chain()
        self._record_bytes = 0
        self._snapshot_bytes = 0
        self._superseded: _Superseded | None = None
        """What is still to be deleted."""
        self.stalled_since: float | None = None
        """On the loop's clock, since when the server has not taken the record that is being written."""
        self.confirmed_at = -inf
        """On the loop's clock, when nobody else had written yet for sure."""

    async def recover(
        self,
        ledger: Ledger,
        curator_state: CuratorState | None = None,
        *,
        settle: Callable[[Ledger, Remains], Iterable[Record]] = lambda *_: (),
    ) -> Seen:
        """Bring the ledger to where it was, and the curator. What `settle` says of it is recorded before groups that no
        record names count as waiting: whoever recovers later finds it there, and the same groups. Each record is
        applied before it says the next. Raises RowsGone where it has nothing to say to rows that are gone.
        """
        await declare_stream(self._bus, self._topology.ledger, deadline_s=_DEADLINE_S, may_change=False)
        # Headers are read last: whatever a record speaks of has arrived by then, and all rows of a task that has left
        # the queue. Columns are read before the rows that they speak of, for the same reason.
        history = await self._history()
        tasks = await queued(self._bus, self._topology.tasks.name, Task)
        columns, last_column = await self._columns(history.snapshot)
        known = 0 if history.snapshot is None else history.snapshot.stages.last_sequence
        seen, gone = await self._replay_headers(ledger, history.snapshot, [one for one in columns if one[0] <= known])
        for sequence, header in columns:
            if sequence > known:
                ledger.column_arrived(sequence, header)
        if curator_state is not None and history.snapshot is not None:
            curator_state.restore(history.snapshot.learnt)
        gone = replay(ledger, history.records, gone=gone)
        anchored = []
        for record in settle(ledger, Remains(queued=frozenset(one.message.task_id for one in tasks), gone=gone)):
            await self.write(record)
            ledger.apply(record)
            anchored += [record] if isinstance(record, LedgerAnchoredAnew) else []
        if gone is not None and not anchored:
            raise RowsGone(gone)
        ledger.end_replay()
        return Seen(trajectories=seen, columns=max(known, last_column), anchored=tuple(anchored))

    async def _history(self) -> _History:
        history, self._chain = _History(), Chain()
        async with StreamReader(self._bus, stream=self._topology.ledger.name) as records:
            while not records.caught_up:
                for delivery in await records.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    if self._is_own(delivery):
                        # Before a record that this version may not know, or would misread.
                        check_format(_format_of(delivery))
                        if (hole := self._chain.follow(delivery)) is not None:
                            history.break_off(hole)
                        message = read_record(delivery)
                        if message is not None:
                            history.add(message, sequence=delivery.sequence, size=len(delivery.payload))
            self._sequence = records.last_sequence
        self._record_bytes, self._snapshot_bytes = history.record_bytes, history.snapshot_bytes
        if history.snapshot is not None:
            self._superseded = _Superseded.by(history.snapshot, first=history.snapshot_first)
        return history

    async def _columns(self, snapshot: LedgerSnapshot | None) -> tuple[list[tuple[int, ColumnHeader]], int]:
        """All that may still matter, and the number of the last one read."""
        if not self._topology.stages:
            return [], 0
        after = 0 if snapshot is None else snapshot.stages.floor - 1
        found: list[tuple[int, ColumnHeader]] = []
        async with StreamReader(
            self._bus, stream=self._topology.columns.name, after_sequence=after, headers_only=True
        ) as headers:
            while not headers.caught_up:
                for delivery in await headers.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    header = column_header_of(delivery)
                    if header is not None:
                        found.append((delivery.sequence, header))
            return found, headers.last_sequence

    async def _replay_headers(
        self, ledger: Ledger, snapshot: LedgerSnapshot | None, columns: Sequence[tuple[int, ColumnHeader]]
    ) -> tuple[int, str | None]:
        """The number of the last, and what of the snapshot's groups is gone. `columns` are those that it knows."""
        ledger.begin_replay()
        restoration = None if snapshot is None else Restoration(ledger, snapshot, columns)
        restored = restoration
        known, after = (0, 0) if snapshot is None else (snapshot.last_sequence, snapshot.floor - 1)
        async with StreamReader(
            self._bus, stream=self._topology.trajectories.name, after_sequence=after, headers_only=True
        ) as headers:
            while not headers.caught_up:
                for delivery in await headers.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    parsed = header_of(delivery)
                    if restoration is not None and delivery.sequence > known:
                        restoration.finish()
                        restoration = None
                    if parsed is None:
                        continue
                    if restoration is not None:
                        restoration.arrived(delivery.sequence, *parsed)
                    else:
                        ledger.arrived(delivery.sequence, *parsed)
            if restoration is not None:
                restoration.finish()
            # A snapshot may know of more than the stream still has: what comes next has those numbers again.
            ledger.last_sequence = headers.last_sequence
            return headers.last_sequence, None if restored is None else restored.gone

    async def write(self, record: Record) -> None:
        self._record_bytes += await self._append(record)

    @property
    def snapshot_bytes(self) -> int:
        """Of the newest."""
        return self._snapshot_bytes

    @property
    def grown(self) -> bool:
        """Whether it is time for a snapshot."""
        return self._record_bytes > max(self._compact_after_bytes, _BYTES_OF_RECORDS_PER_BYTE * self._snapshot_bytes)

    async def compact(self, snapshot: LedgerSnapshot) -> None:
        """Write it down, then delete what it makes superfluous. What the snapshot before it made superfluous goes
        first, where that was not possible then: a store that is full has room for this one afterwards."""
        await self._delete_superseded()
        packed = zstandard.compress(msgspec.msgpack.encode(snapshot))
        first = self._sequence + 1
        size = self._part_bytes
        bodies = [packed[start : start + size] for start in range(0, len(packed), size)]
        for number, body in enumerate(bodies):
            await self._append(SnapshotPart(number=number, count=len(bodies), body=body))
        self._record_bytes, self._snapshot_bytes = 0, len(packed)
        self._superseded = _Superseded.by(snapshot, first=first)
        await self._delete_superseded()
        _log.info(
            "ledger_compacted",
            bytes=len(packed),
            trajectories_from=snapshot.floor,
            columns_from=snapshot.stages.floor,
        )

    async def _delete_superseded(self) -> None:
        """What is not deleted now is before the next snapshot is written."""
        superseded = self._superseded
        if superseded is None:
            return
        deleted = [
            await self._delete_before(self._topology.ledger.name, superseded.ledger),
            await self._delete_before(self._topology.trajectories.name, superseded.trajectories),
        ]
        if self._topology.stages:
            deleted.append(await self._delete_before(self._topology.columns.name, superseded.columns))
        if all(deleted):
            self._superseded = None

    async def _delete_before(self, stream: str, sequence: int) -> bool:
        try:
            await api_call(self._bus, f"STREAM.PURGE.{stream}", {"seq": sequence}, deadline_s=_DEADLINE_S)
        except BusError as error:
            _log.warning("old_messages_not_deleted", stream=stream, before=sequence, error=str(error))
            return False
        return True

    async def _append(self, message: Message) -> int:
        """Returns its size once the server has it. A full store and a server that is away are waited for: the record is
        neither skipped nor followed by another one."""
        payload, stream = encode(message), self._topology.ledger.name
        conflicts, waits = 0, 0
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                if await self._tried(payload, passable_headers(message)):
                    if self.stalled_since is not None:
                        _log.info("ledger_writes_again", stream=stream, after_s=round(clock() - began, 1))
                        self.stalled_since = None
                    return len(payload)
            except (BusTimeout, BusUnavailable) as error:
                # Without the stream no patience helps: a process that begins anew has it made again.
                if isinstance(error, NoResponders) and clock() - began > _DEADLINE_S:
                    raise
                if self.stalled_since is None:
                    self.stalled_since = began
                    _log.error("ledger_write_stalled", stream=stream, error=str(error))
                await asyncio.sleep(_STALL_BACKOFF.delay_s(waits))
                waits += 1
            else:
                if conflicts == _APPEND_ATTEMPTS:
                    raise ForeignFlood(
                        f"{stream} is written to by something else, faster than by its dataflow: see its users"
                    )
                await asyncio.sleep(_APPEND_BACKOFF.delay_s(conflicts))
                conflicts += 1

    async def _tried(self, payload: bytes, more: Mapping[str, str]) -> bool:
        """One attempt at the next record: False where messages of others were in its place."""
        sequence, began = self._sequence + 1, asyncio.get_running_loop().time()
        message_id = f"{self._incarnation}-{sequence}"
        code = self._key.code(payload, stream=self._topology.ledger.name, sequence=sequence)
        try:
            await publish(
                self._bus,
                self._topology.ledger_subject,
                payload,
                message_id=message_id,
                headers={
                    "Nats-Expected-Last-Sequence": str(self._sequence),
                    HEADER: code,
                    _FORMAT_HEADER: str(self.format),
                    **self._chain.headers(),
                    **more,
                },
                deadline_s=_APPEND_S,
            )
        except BusConflict:
            # The server looks at sequences before it looks at ids: a record whose acknowledgement was lost and which is
            # repeated meets itself.
            return await self._pass_foreign(own_id=message_id)
        self._sequence, self._chain.newest, self.confirmed_at = sequence, sequence, began
        return True

    async def confirm(self) -> None:
        """Raise AnotherWriter unless the newest record is ours."""
        began = asyncio.get_running_loop().time()
        if await self._last_sequence() != self._sequence:
            await self._pass_foreign()
        self.confirmed_at = began

    async def _pass_foreign(self, *, own_id: str | None = None) -> bool:
        """Go past messages that are not the dataflow's. Whether the one with `own_id` was among them; raises
        AnotherWriter for any other of the dataflow's own."""
        stream = self._topology.ledger.name
        before, last = self._sequence, await self._last_sequence()
        async with StreamReader(self._bus, stream=stream, after_sequence=before) as reader:
            while not reader.caught_up and reader.last_sequence < last:
                for delivery in await reader.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    if not self._is_own(delivery):
                        continue
                    if delivery.headers.get(MESSAGE_ID_HEADER) != own_id:
                        raise AnotherWriter(f"{stream} is at {delivery.sequence}, this process at {before}")
                    self._sequence = self._chain.newest = delivery.sequence
                    return True
        # Some may have been deleted since: then no message has the last number, and it is still the last.
        self._sequence = max(last, reader.last_sequence)
        return False

    def _is_own(self, delivery: Delivery) -> bool:
        stream = self._topology.ledger.name
        if self._key.made(delivery.payload, delivery.headers, stream=stream, sequence=delivery.sequence):
            return True
        self._foreign += 1
        # Each time that there are twice as many: a flood of them must not become one of logs.
        if self._foreign.bit_count() == 1:
            _log.error("foreign_record", stream=stream, sequence=delivery.sequence, found=self._foreign)
        self._on_foreign(1)
        return False

    async def _last_sequence(self) -> int:
        info = await api_call(self._bus, f"STREAM.INFO.{self._topology.ledger.name}", deadline_s=_DEADLINE_S)
        return int(info["state"]["last_seq"])


class JournalMaker(Protocol):
    """What opens the journal of a job: `Journal` itself, or that with sizes of its own."""

    def __call__(
        self,
        bus: Bus,
        topology: JobTopology,
        *,
        incarnation: str,
        key: JournalKey,
        on_foreign: Callable[[int], None],
    ) -> Journal: ...


def _format_of(delivery: Delivery) -> int:
    written = delivery.headers.get(_FORMAT_HEADER, "1")
    return int(written) if written.isdecimal() and len(written) < 10 else 0
