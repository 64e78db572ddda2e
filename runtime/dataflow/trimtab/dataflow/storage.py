"""What the dataflow does about storage that runs out: it admits no new tasks while the operator says so, makes room by
snapshots, and tells since when its ledger has been waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.fabric.bus.admission_hold import held_for
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.metrics import Metrics

_log = structlog.get_logger(__name__)
_LOOK_S = 2.0
_DEADLINE_S = 5.0


class StorageMetrics:
    """Of a job's dataflow."""

    def __init__(self, metrics: Metrics) -> None:
        self._held = metrics.gauge(
            "dataflow_admission_held", "1 while no new task is admitted, because storage is nearly full."
        )
        self._stalled = metrics.gauge(
            "dataflow_ledger_stalled_seconds",
            "For how long the store has not taken the record that is being written, 0 while it takes them.",
        )

    def watch(self, storage: Storage) -> None:
        """Gauges are read at each scrape."""
        self._held.set_function(lambda: float(storage.is_short()))
        self._stalled.set_function(lambda: storage.stalled_s)


class Storage:
    """Says whether tasks may be admitted. Nothing known is no reason to hold them: a store that takes no record admits
    none anyway."""

    def __init__(
        self, bus: Bus, topology: JobTopology, books: Bookkeeper, metrics: StorageMetrics, *, clock: Callable[[], float]
    ) -> None:
        """`clock` is Unix time, by which the operator's note runs out."""
        self._bus = bus
        self._topology = topology
        self._books = books
        self._clock = clock
        self.held: str | None = None
        """Why no task is admitted; None when tasks are."""
        self._now = asyncio.get_running_loop().time
        metrics.watch(self)

    @property
    def stalled_s(self) -> float:
        """For how long the ledger's record has been waiting for the store."""
        since = self._books.stalled_since
        return 0.0 if since is None else self._now() - since

    def is_short(self) -> bool:
        return self.held is not None

    async def run(self) -> None:
        while True:
            try:
                held = await held_for(self._bus, self._topology, now=self._clock(), deadline_s=_DEADLINE_S)
            except BusError as error:
                _log.warning("storage_not_known", error=str(error))
            else:
                if held != self.held:
                    _log.warning("admission_held" if held else "admission_goes_on", reason=held or "")
                    self.held = held
                    self._books.nudge()
            await asyncio.sleep(_LOOK_S)
