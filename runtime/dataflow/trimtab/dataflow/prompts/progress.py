"""Reading a large source takes minutes: people see how far it is, and a pod that is told to stop does not finish it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)
_EVERY_S = 10.0


class ReadingStopped(Exception):
    """Nobody waits for the result any more."""


class Progress:
    """Told of every block of rows by the thread that reads them; `stopping` is set by another."""

    def __init__(self, *, clock: Callable[[], float], stopping: threading.Event) -> None:
        self._clock = clock
        self._stopping = stopping
        self._logged_at = clock()

    def note(self, doing: str, *, source: str, rows: int, of: int | None = None) -> None:
        if self._stopping.is_set():
            raise ReadingStopped(f"{source}: given up while {doing}, after {rows} rows")
        if self._clock() >= self._logged_at + _EVERY_S:
            self._logged_at = self._clock()
            _log.info("reading_prompts", source=source, doing=doing, rows=rows, of=of)
