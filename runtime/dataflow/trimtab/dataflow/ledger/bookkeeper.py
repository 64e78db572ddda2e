"""The one hand that writes: decisions are made, recorded and applied one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.ledger import Arrival, Ledger
from trimtab.dataflow.ledger.records import Record
from trimtab.fabric.wire.header import TrajectoryHeader


class Bookkeeper:
    """Owns ledger and journal, and wakes whoever waits for a change."""

    def __init__(self, ledger: Ledger, journal: Journal) -> None:
        self.ledger = ledger
        self._journal = journal
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def record(self, decide: Callable[[Ledger], Record | None]) -> Record | None:
        """Ask for a decision on the books as they are now; write it down, then apply it. None decides nothing."""
        async with self._turn:
            record = decide(self.ledger)
            if record is None:
                return None
            await self._journal.write(record)
            self.ledger.apply(record)
            self._notify()
            return record

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Arrival:
        arrival = self.ledger.arrived(sequence, trajectory_id, header)
        if arrival in (Arrival.COMPLETED, Arrival.FAILED):
            self._notify()
        return arrival

    async def changed(self, *, timeout_s: float) -> None:
        """Return at the next change, or when the time is over."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
