"""What happens to columns as they arrive: their headers are taken, and their numbers stay in the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.staged_group import ColumnArrival
from trimtab.dataflow.outcomes import column_header_of
from trimtab.dataflow.stage_metrics import StageMetrics
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.reader import StreamReader

_log = structlog.get_logger(__name__)
_BATCH = 512
_WAIT_S = 5.0
# As with the headers of rows: where they come one by one, a moment's patience takes many at a time.
_LINGER_S = 0.004
_FEW = 64


class ColumnIntake:
    """Follows the stream of columns from where recovery ended."""

    def __init__(
        self,
        bus: Bus,
        books: Bookkeeper,
        metrics: StageMetrics,
        *,
        stream: str,
        after_sequence: int,
        on_unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = StreamReader(
            bus, stream=stream, after_sequence=after_sequence, headers_only=True, never_rewound=True
        )
        self._books = books
        self._metrics = metrics
        self._on_unreadable = on_unreadable

    async def run(self) -> None:
        async with self._reader:
            while True:
                try:
                    deliveries = await self._reader.read(batch=_BATCH, wait_s=_WAIT_S)
                except BusTimeout:
                    continue
                for delivery in deliveries:
                    header = column_header_of(delivery)
                    if header is None:
                        self._on_unreadable()
                        continue
                    arrival = self._books.column_arrived(delivery.sequence, header)
                    self._metrics.note(header, arrival, known=header.stage in self._books.ledger.stages.graph.stages)
                    if arrival in (ColumnArrival.FAILED, ColumnArrival.REFUSED):
                        _log.warning(
                            f"column_{arrival}",
                            stage=header.stage,
                            group=header.group_id,
                            error=header.error,
                            worker=header.worker,
                        )
                if len(deliveries) < _FEW:
                    await asyncio.sleep(_LINGER_S)
