"""Reads along what a running job writes down, as a long job deletes what it no longer needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from trimtab.dataflow.ledger.records import RECORDS, Record, SnapshotPart
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers

_BATCH = 512
_WAIT_S = 30.0


class Follower:
    """Ledger and trajectories of one job, from the first message to the last."""

    def __init__(self, topology: JobTopology) -> None:
        self._topology = topology
        self._places = {topology.ledger.name: 0, topology.trajectories.name: 0}
        self.records: list[Record] = []
        self.headers: list[TrajectoryHeader] = []

    async def follow(self, settings: NatsSettings) -> None:
        """Until cancelled, or until the server is gone."""
        with suppress(BusError):
            await self._read(settings, until_caught_up=False)

    async def catch_up(self, server: EmbeddedNats) -> None:
        """What came after the job's server was stopped being followed."""
        with server:
            await self._read(server.settings, until_caught_up=True)

    async def _read(self, settings: NatsSettings, *, until_caught_up: bool) -> None:
        async with await Bus.connect(settings, name="curves") as bus:
            await declare_job(bus, self._topology, deadline_s=_WAIT_S)
            await asyncio.gather(
                self._read_stream(bus, self._topology.ledger.name, self._note_record, until_caught_up=until_caught_up),
                self._read_stream(
                    bus, self._topology.trajectories.name, self._note_header, until_caught_up=until_caught_up
                ),
            )

    async def _read_stream(
        self, bus: Bus, stream: str, note: Callable[[Delivery], None], *, until_caught_up: bool
    ) -> None:
        headers_only = stream == self._topology.trajectories.name
        after = self._places[stream]
        async with StreamReader(bus, stream=stream, after_sequence=after, headers_only=headers_only) as reader:
            while not (until_caught_up and reader.caught_up):
                for delivery in await reader.read(batch=_BATCH, wait_s=_WAIT_S):
                    note(delivery)
                    self._places[stream] = delivery.sequence

    def _note_record(self, delivery: Delivery) -> None:
        record = decode(delivery.payload, *RECORDS, SnapshotPart)
        if isinstance(record, Record):
            self.records.append(record)

    def _note_header(self, delivery: Delivery) -> None:
        self.headers.append(parse_headers(delivery.headers)[1])
