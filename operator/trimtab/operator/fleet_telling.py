"""Writes what the operator knows of a job's fleet where the pod that tells trackers can read it, as soon as it changes
and not too often. A bus that is away is told afterwards.
"""

from __future__ import annotations

import asyncio

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.fleet_note import FleetNote, read_fleet_note, write_fleet_note
from trimtab.fabric.bus.topology import JobTopology

_log = structlog.get_logger(__name__)
_DEADLINE_S = 30.0
_PAUSE_S = 2.0
"""After each: whoever scales a pool up and down in a loop makes no more changes of a stream."""
_BACKOFF = FullJitter(base_s=2.0, cap_s=60.0)


class FleetTelling:
    """Of one job. It costs nothing until something is told."""

    def __init__(self, bus: Bus, topology: JobTopology) -> None:
        self._bus = bus
        self._topology = topology
        self._note: FleetNote | None = None
        self._changed = asyncio.Event()

    def tell(self, note: FleetNote) -> None:
        """Of what was told before nothing is lost."""
        told = note if self._note is None else self._note.followed_by(note)
        if told != self._note:
            self._note = told
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled; then again, with what was not written."""
        if self._note is not None:
            self._changed.set()
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
                failures = 0
                await asyncio.sleep(_PAUSE_S)
            except BusError as error:
                _log.warning("fleet_not_told", job=self._topology.job, error=str(error))
                self._changed.set()
                await asyncio.sleep(_BACKOFF.delay_s(failures))
                failures += 1

    async def _write(self) -> None:
        # An operator before this one, or a stream from a backup, may know of more.
        there = await read_fleet_note(self._bus, self._topology, deadline_s=_DEADLINE_S)
        if self._note is not None:
            self._note = there.followed_by(self._note)
            await write_fleet_note(self._bus, self._topology, self._note, deadline_s=_DEADLINE_S)
