"""Tells a tracker a run's history as it is written, in a process of its own: one that is away, or slow, costs the run
nothing, and is told later what it has missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from trimtab.cli.chronicle.file import read_on
from trimtab.cli.tracking.cursor import Cursor, read_cursor, write_cursor
from trimtab.cli.tracking.points import Points
from trimtab.cli.tracking.tracker import Run, TrackerAway, TrackerWriter
from trimtab.fabric.backoff import FullJitter

_log = structlog.get_logger(__name__)
_LOOK_S = 1.0
BACKOFF = FullJitter(base_s=2.0, cap_s=60.0)

Open = Callable[[Run], TrackerWriter]


class Follower:
    """Of one tracker and one run, whose history lies in the state folder."""

    def __init__(
        self, run: Run, open_writer: Open, *, state_folder: Path, cursor_file: Path, backoff: FullJitter = BACKOFF
    ) -> None:
        self._run = run
        self._open = open_writer
        self._state_folder = state_folder
        self._cursor_file = cursor_file
        self._backoff = backoff
        self._writer: TrackerWriter | None = None

    def follow(self, stopping: threading.Event, *, patience_s: float = 0.0) -> bool:
        """Until `stopping` is set; then once more what there is, with patience for a tracker that is away then. Whether
        it has all of it."""
        failures, end = 0, None
        while True:
            last = stopping.is_set()
            if last and end is None:
                failures, end = 0, time.monotonic() + patience_s
            try:
                while self.tell():
                    failures = 0
            except TrackerAway as away:
                _log.warning("tracker_away", reason=str(away))
                self.close()
                wait_s = self._backoff.delay_s(failures)
                failures += 1
                if end is None:
                    stopping.wait(wait_s)
                elif (left_s := end - time.monotonic()) > 0:
                    time.sleep(min(wait_s, left_s))
                else:
                    return False
                continue
            if last:
                return True
            stopping.wait(_LOOK_S)

    def tell(self) -> bool:
        """What is new, up to a bound; whether there was anything. Raises TrackerAway, and then the cursor is where it
        was: what was told in part is told again."""
        cursor = read_cursor(self._cursor_file)
        records, end = read_on(self._state_folder, cursor.offset)
        if not records:
            return False
        points = Points(newest=cursor.newest, spending=cursor.spending)
        told = [point for record in records for point in points.of(record)]
        writer = self._opened(cursor)
        writer.write(told)
        reached = Cursor(offset=end, newest=points.newest, run_id=writer.run_id, spending=points.spending)
        write_cursor(self._cursor_file, reached)
        return True

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _opened(self, cursor: Cursor) -> TrackerWriter:
        if self._writer is None:
            self._writer = self._open(replace(self._run, id=cursor.run_id))
            # A run that was begun is found again, whatever becomes of the points.
            write_cursor(self._cursor_file, msgspec.structs.replace(cursor, run_id=self._writer.run_id))
        return self._writer
