"""The ledger's own stream. The server acknowledges a record before anything that depends on it leaves this process."""

from __future__ import annotations

from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import RECORDS, Record
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import parse_headers

_DEADLINE_S = 30.0
_BATCH = 512


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
        async with StreamReader(self._bus, stream=self._topology.trajectories.name, headers_only=True) as headers:
            while not headers.caught_up:
                for delivery in await headers.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    trajectory_id, header = parse_headers(delivery.headers)
                    ledger.arrived(delivery.sequence, trajectory_id, header)
            seen = headers.last_sequence
        async with StreamReader(self._bus, stream=self._topology.ledger.name) as records:
            while not records.caught_up:
                for delivery in await records.read(batch=_BATCH, wait_s=_DEADLINE_S):
                    ledger.apply(_record(delivery.payload))
            self._sequence = records.last_sequence
        return seen

    async def write(self, record: Record) -> None:
        acknowledgement = await publish(
            self._bus,
            self._topology.ledger_subject,
            encode(record),
            message_id=f"{self._incarnation}-{self._sequence + 1}",
            headers={"Nats-Expected-Last-Sequence": str(self._sequence)},
            deadline_s=_DEADLINE_S,
        )
        self._sequence = acknowledgement.sequence


def _record(payload: bytes) -> Record:
    record = decode(payload, *RECORDS)
    assert isinstance(record, Record)
    return record
