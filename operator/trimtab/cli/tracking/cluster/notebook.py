"""How far trackers have come, in one object of the job's store: a pod that begins anew goes on from there.

It has what was heard, a cursor for each tracker, and the history from where the one that is furthest behind has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from trimtab.api.tracking import TrackerType
from trimtab.cli.chronicle.file import FILE_NAME, read
from trimtab.cli.tracking.cluster.listening import Heard
from trimtab.cli.tracking.cursor import Cursor, read_cursor, write_cursor
from trimtab.cli.tracking.trackers import cursor_file
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ChecksumMismatch, ObjectNotFound, ObjectStoreError, ObjectTooLarge

_log = structlog.get_logger(__name__)
KEY = "tracking/notebook"
MAX_HISTORY_BYTES = 64 << 20
"""Of what trackers have not been told: more is not kept for a pod that begins anew."""
_MAX_BYTES = MAX_HISTORY_BYTES + (8 << 20)
_SAVE_S = 5.0
_BYTES_PER_SECOND = 256 << 10
"""At most, on average: a tracker that is away for long makes the object large."""


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    heard: Heard
    cursors: dict[TrackerType, Cursor]
    history: bytes


class Notebook:
    """`folder` is where the history is written and trackers' cursors are kept while the pod lives."""

    def __init__(self, store: ObjectStore, folder: Path, trackers: Sequence[TrackerType]) -> None:
        self._store = store
        self._folder = folder
        self._trackers = trackers
        self._saved: tuple[int, dict[TrackerType, Cursor]] = (0, {})
        self._due = 0.0

    async def open(self) -> Heard:
        """Into the folder, where nothing is; what was heard before. Raises ObjectStoreError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        page = await self._page()
        if (self._folder / FILE_NAME).exists():
            # The container was started again in its pod: what is in the folder is newer.
            for record in read(self._folder):
                page.heard.recall(record)
            return page.heard
        for tracker, cursor in page.cursors.items():
            if tracker in self._trackers:
                write_cursor(cursor_file(self._folder, tracker), cursor)
        (self._folder / FILE_NAME).write_bytes(page.history)
        return page.heard

    async def _page(self) -> _Page:
        try:
            found = await self._store.get(KEY, max_bytes=_MAX_BYTES)
            return msgspec.msgpack.decode(found.body, type=_Page)
        except ObjectNotFound:
            pass
        except (msgspec.DecodeError, ChecksumMismatch, ObjectTooLarge) as error:
            _log.warning("notebook_unreadable", reason=str(error), consequence="trackers begin new runs")
        return _Page(heard=Heard(), cursors={}, history=b"")

    async def save(self, heard: Heard, *, now: float, at_once: bool = False) -> None:
        """What has changed, now and then, and at once when a tracker has begun a run, which would be begun again. A
        store that is away is tried again the next time."""
        # Cursors first: what is told meanwhile is told again, and nothing is left out.
        cursors = {tracker: read_cursor(cursor_file(self._folder, tracker)) for tracker in self._trackers}
        history = self._folder / FILE_NAME
        size = history.stat().st_size if history.exists() else 0
        begun = any(self._saved[1].get(name, Cursor()).run_id != cursor.run_id for name, cursor in cursors.items())
        if (size, cursors) == self._saved or not (begun or at_once or now >= self._due):
            return
        page = page_of(history.read_bytes() if size else b"", cursors, heard)
        body = msgspec.msgpack.encode(page)
        try:
            await self._store.put(KEY, body)
        except ObjectStoreError as error:
            _log.warning("notebook_not_saved", reason=str(error))
            return
        self._saved = (size, cursors)
        self._due = now + max(_SAVE_S, len(body) / _BYTES_PER_SECOND)


def page_of(history: bytes, cursors: dict[TrackerType, Cursor], heard: Heard) -> _Page:
    """With the part of the history that some tracker has yet to be told, and cursors that count from its beginning."""
    begin = min((cursor.offset for cursor in cursors.values()), default=len(history))
    if len(history) - begin > MAX_HISTORY_BYTES:
        begin = history.find(b"\n", len(history) - MAX_HISTORY_BYTES) + 1
        _log.warning("history_cut", reason="a tracker is too far behind for all of it to be kept")
    moved = {
        tracker: msgspec.structs.replace(cursor, offset=max(0, cursor.offset - begin))
        for tracker, cursor in cursors.items()
    }
    return _Page(heard=heard, cursors=moved, history=history[begin:])
