"""Says where a trainer stands that has not moved for a while. Ranks wait for one another inside of torch, where nothing
of ours runs: without this, the log of a rank that waits for ever ends like that of one that works.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable
from typing import IO, Self

import structlog

_log = structlog.get_logger(__name__)


class StallWatch:
    """Writes the stacks of all threads once whenever `moved` was not called for `limit_s`."""

    def __init__(self, *, limit_s: float, clock: Callable[[], float], out: IO[str] | None = None) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._out = out or sys.stderr
        self._moved_at = clock()
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    def __enter__(self) -> Self:
        self._moved_at = self._clock()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def moved(self) -> None:
        self._moved_at = self._clock()
        self._told = False

    def _run(self) -> None:
        while not self._stop.wait(self._limit_s / 4):
            idle_s = self._clock() - self._moved_at
            if idle_s >= self._limit_s and not self._told:
                self._told = True
                _log.warning("trainer_stalled", seconds=round(idle_s))
                faulthandler.dump_traceback(self._out, all_threads=True)
