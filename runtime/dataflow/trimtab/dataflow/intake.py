"""Takes the headers of trajectories as they arrive. Payloads stay in the stream."""

from __future__ import annotations

import asyncio

import structlog

from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Arrival
from trimtab.dataflow.trajectories import header_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.reader import StreamReader

_log = structlog.get_logger(__name__)
_BATCH = 512
_WAIT_S = 5.0
# A pull costs as much as a dozen headers. Where they come one by one, a moment's patience takes many at a time.
_LINGER_S = 0.004
_FEW = 64


class Intake:
    """Follows the trajectory stream from where recovery ended."""

    def __init__(self, bus: Bus, books: Bookkeeper, *, stream: str, after_sequence: int) -> None:
        self._reader = StreamReader(bus, stream=stream, after_sequence=after_sequence, headers_only=True)
        self._books = books

    async def run(self) -> None:
        async with self._reader:
            while True:
                try:
                    deliveries = await self._reader.read(batch=_BATCH, wait_s=_WAIT_S)
                except BusTimeout:
                    continue
                for delivery in deliveries:
                    parsed = header_of(delivery)
                    if parsed is None:
                        continue
                    trajectory_id, header = parsed
                    arrival = self._books.arrived(delivery.sequence, trajectory_id, header)
                    if arrival in (Arrival.FAILED, Arrival.REFUSED):
                        _log.warning(
                            f"group_{arrival}", group=header.group_id, error=header.error, worker=header.worker
                        )
                if len(deliveries) < _FEW:
                    await asyncio.sleep(_LINGER_S)
