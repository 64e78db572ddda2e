"""Jobs of `trimtab run`, by the folders that they live in: their histories are read on as they are written."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.chronicle.file import FILE_NAME, UnreadableChronicle, read_on
from trimtab.cli.chronicle.records import Record
from trimtab.cli.job_bucket import BusSettings, left_environment
from trimtab.cli.state_folder import holder
from trimtab.cli.ui.book import Book
from trimtab.cli.ui.following import follow
from trimtab.cli.ui.run import Place, run_id
from trimtab.cli.ui.shown import Now, Summary
from trimtab.cli.ui.telling import HistoryTelling
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import load_settings
from trimtab.operator.local.state_files import MANIFEST_FILE

_log = structlog.get_logger(__name__)
_STATE_FOLDERS = ".trimtab"
RUNNING = "running"
_LOOK_S = 0.25
_REST_EVERY = 4
"""Looks, of runs that nobody works on: one may be taken up again."""
_SEARCH_EVERY = 8
"""Looks, for runs that are new."""
_DEPTH = 6
_FOLDERS = 20_000
"""That are looked into at most, in all."""
_MOST_OF_A_LINE = 1 << 16
_LEFT_OUT = frozenset({"node_modules", "__pycache__", "site-packages"})


def state_folders(places: Sequence[Path]) -> Iterator[Path]:
    """Below the places, or these themselves. Hidden folders are passed by, but for those that `trimtab run` makes."""
    left = _FOLDERS
    waiting = [(place.resolve(), 0) for place in reversed(places)]
    while waiting and left:
        folder, depth = waiting.pop()
        left -= 1
        if (folder / FILE_NAME).is_file():
            yield folder
            continue
        if depth == _DEPTH:
            continue
        try:
            below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        waiting += [
            (folder / name, depth + 1)
            for name in reversed(below)
            if name == _STATE_FOLDERS or not (name.startswith(".") or name in _LEFT_OUT)
        ]


@dataclass(frozen=True)
class _News:
    begins_anew: bool
    """The history is another one than that which was read."""
    generation: str
    records: list[Record]


class LocalRun:
    """`beside` is what its folder is told relative to."""

    def __init__(self, folder: Path, *, beside: Path) -> None:
        self.folder = folder
        self.id = run_id(folder.name, str(folder))
        self.generation = ""
        self.telling = HistoryTelling()
        self.now = Now()
        self._where = _where(folder, beside)
        self._offset = 0
        self._first_line = b""
        self.trouble = ""
        """Why its history cannot be read to the end."""
        self.summary = self._summarised()

    @property
    def place(self) -> Place:
        return Place(topology=_topology(self.folder), state_folder=self.folder)

    async def look(self) -> bool:
        """Takes in what is new; whether the run's line is another one."""
        before = self.summary
        records: list[Record] | None = None
        while records != []:
            news = await asyncio.to_thread(self._read)
            if news.begins_anew:
                self.telling = HistoryTelling()
            self.generation, records = news.generation, news.records
            for record in records:
                self.telling.add(record)
        self.summary = self._summarised()
        return self.summary != before

    @property
    def is_live(self) -> bool:
        return self.summary.state == RUNNING

    async def follow(self) -> None:
        try:
            await follow(self._settings, self.place.topology, self._show)
        finally:
            # What was so then is not so now.
            self.now = Now()

    def _settings(self) -> BusSettings:
        # Of servers that run: that they are started for who looks is for those who ask for samples.
        return load_settings(left_environment(self.folder), BusSettings)

    def _show(self, now: Now) -> None:
        self.now = now

    def _read(self) -> _News:
        try:
            with (self.folder / FILE_NAME).open("rb") as file:
                first = file.readline(_MOST_OF_A_LINE)
                size = file.seek(0, os.SEEK_END)
        except OSError:
            first, size = b"", 0
        begins_anew = first != self._first_line or size < self._offset
        if begins_anew:
            self._first_line, self._offset = first, 0
        records: list[Record] = []
        try:
            records, self._offset = read_on(self.folder, self._offset)
            self.trouble = ""
        except (UnreadableChronicle, OSError) as error:
            self.trouble = _text(error)
        return _News(begins_anew, hashlib.sha256(first).hexdigest()[:8], records)

    def _summarised(self) -> Summary:
        return self.telling.summary(
            run_id=self.id,
            name=_text(self.folder.name),
            where=self._where,
            state=self._state(),
            trouble=self.trouble,
        )

    def _state(self) -> str:
        """One that was killed leaves no word of it."""
        ended = self.telling.story.ended
        if ended is not None:
            return ended.outcome
        return RUNNING if _is_held(self.folder) else "killed"


def _is_held(folder: Path) -> bool:
    """Taking the lock to see would keep `trimtab run` out meanwhile. Another process may have the number by now, but
    not since before the number was written.
    """
    found = holder(folder)
    if found is None or found.pid == os.getpid():
        return False
    try:
        return bool(psutil.Process(found.pid).create_time() <= found.since + 1.0)
    except psutil.Error:
        return False


def _topology(folder: Path) -> JobTopology:
    try:
        job = read_job(folder / MANIFEST_FILE)
    except (OSError, InvalidManifestError, UnreadableManifestError, ValueError) as error:
        _log.warning("manifest_unreadable", folder=str(folder), error=str(error))
        return JobTopology("default", folder.name)
    return JobTopology(job.metadata.namespace or "default", job.metadata.name)


def _where(folder: Path, beside: Path) -> str:
    """The folder of its manifest, as far as its own says; empty for the one that is told relative to."""
    place = folder.parent.parent if folder.parent.name == _STATE_FOLDERS else folder
    if place == beside:
        return ""
    return _text(place.relative_to(beside) if place.is_relative_to(beside) else place)


def _text(name: object) -> str:
    """A file's name need not be text, and what is sent to a page is."""
    return str(name).encode("utf-8", "replace").decode()


class LocalRuns:
    """Below some folders. New ones are looked for again and again, those that are known are read on."""

    def __init__(self, places: Sequence[Path], *, beside: Path) -> None:
        self._places = places
        self._beside = beside

    async def keep(self, book: Book) -> None:
        runs: dict[Path, LocalRun] = {}
        for turn in itertools.count():
            if turn % _SEARCH_EVERY == 0:
                for folder in await asyncio.to_thread(lambda: list(state_folders(self._places))):
                    if folder not in runs:
                        runs[folder] = run = LocalRun(folder, beside=self._beside)
                        await run.look()
                        book.put(run)
            for folder, run in list(runs.items()):
                if not folder.is_dir():
                    del runs[folder]
                    book.drop(run.id)
                elif (run.is_live or turn % _REST_EVERY == 0) and await run.look():
                    book.put(run)
            await asyncio.sleep(_LOOK_S)
