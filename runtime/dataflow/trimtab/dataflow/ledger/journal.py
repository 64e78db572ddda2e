"""The ledger's own stream. The server acknowledges a record before anything that depends on it leaves this process."""

from __future__ import annotations

import base64
from email.parser import BytesParser

from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import RECORDS, Record
from trimtab.dataflow.trajectories import header_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusConflict, BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import MESSAGE_ID_HEADER, publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode

_DEADLINE_S = 30.0
_BATCH = 512


class AnotherWriter(RuntimeError):
    """Someone else has written to this job's journal: of two dataflow processes one must end."""


class Journal:
    """Writes records in order. The server checks the number of each: of two dataflow processes one fails and recovers.

    `incarnation` keeps their message ids apart: the second's record must be refused, not taken for a repeated one.
    """

    def __init__(self, bus: Bus, topology: JobTopology, *, incarnation: str) -> None:
        self._bus = bus
        self._topology = topology
        self._incarnation = incarnation
        self._sequence = 0

    async def recover(self, ledger: Ledger) -> int:
        """Bring the ledger to where it was; returns the sequence of the last trajectory it has seen."""
        await declare_stream(self._bus, self._topology.ledger, deadline_s=_DEADLINE_S)
        ledger.begin_replay()
        async with StreamReader(self._bus, stream=self._topology.trajectories.name, headers_only=True) as headers:
            while not headers.caught_up:
                for delivery in await headers.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    parsed = header_of(delivery)
                    if parsed is not None:
                        ledger.arrived(delivery.sequence, *parsed)
            seen = headers.last_sequence
        async with StreamReader(self._bus, stream=self._topology.ledger.name) as records:
            while not records.caught_up:
                for delivery in await records.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    record = decode(delivery.payload, *RECORDS)
                    assert isinstance(record, Record)
                    ledger.apply(record)
            self._sequence = records.last_sequence
        ledger.end_replay()
        return seen

    async def write(self, record: Record) -> None:
        message_id = f"{self._incarnation}-{self._sequence + 1}"
        try:
            await publish(
                self._bus,
                self._topology.ledger_subject,
                encode(record),
                message_id=message_id,
                headers={"Nats-Expected-Last-Sequence": str(self._sequence)},
                deadline_s=_DEADLINE_S,
            )
        except BusConflict as conflict:
            # The server looks at sequences before it looks at ids: a record whose acknowledgement was lost and which
            # is repeated meets itself.
            if await self._id_at(self._sequence + 1) != message_id:
                raise AnotherWriter(f"{self._topology.ledger.name}: {conflict}") from conflict
        self._sequence += 1

    async def confirm(self) -> None:
        """Raise AnotherWriter unless the newest record is ours."""
        info = await api_call(self._bus, f"STREAM.INFO.{self._topology.ledger.name}", deadline_s=_DEADLINE_S)
        last = int(info["state"]["last_seq"])
        if last != self._sequence:
            raise AnotherWriter(f"{self._topology.ledger.name} is at {last}, this process at {self._sequence}")

    async def _id_at(self, sequence: int) -> str | None:
        stream = self._topology.ledger.name
        try:
            answer = await api_call(self._bus, f"STREAM.MSG.GET.{stream}", {"seq": sequence}, deadline_s=_DEADLINE_S)
        except BusNotFound:
            return None
        _, _, lines = base64.b64decode(answer["message"].get("hdrs", "")).partition(b"\r\n")
        found = BytesParser().parsebytes(lines, headersonly=True).get(MESSAGE_ID_HEADER)
        return None if found is None else str(found)
