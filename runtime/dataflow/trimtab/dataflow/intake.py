"""Takes the headers of trajectories as they arrive. Payloads stay in the stream."""

from __future__ import annotations

import structlog

from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Arrival
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import parse_headers

_log = structlog.get_logger(__name__)
_BATCH = 512
_WAIT_S = 5.0


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
                    self._take(delivery.sequence, delivery.headers)

    def _take(self, sequence: int, headers: dict[str, str]) -> None:
        try:
            trajectory_id, header = parse_headers(headers)
        except WireError as error:
            _log.error("trajectory_refused", sequence=sequence, reason=str(error))
            return
        arrival = self._books.arrived(sequence, trajectory_id, header)
        if arrival is Arrival.FAILED:
            _log.warning("group_failed", group=header.group_id, error=header.error, worker=header.worker)
