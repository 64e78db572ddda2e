"""Transcripts, so that a decision can be looked up long after it was made."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Protocol

from trimtab.fabric.durable_files import replace_file

_PARTIAL = ".partial"
MOST_BYTES = 256 << 20
"""A quarter of the disk that the chart gives the operator."""


class Transcripts(Protocol):
    def keep(self, *, namespace: str, job: str, decision_id: str, at: float, document: bytes) -> str:
        """Store it for good, and say by which name it is found. May block. Raises OSError."""
        ...


class TranscriptFolder:
    """One folder per job with its newest transcripts, in the order of their names. All together have a bound as well:
    an endpoint writes what it likes, jobs come and go, and a full disk would end the operator's pod."""

    def __init__(self, folder: Path, *, newest: int, most_bytes: int = MOST_BYTES) -> None:
        if newest < 1:
            raise ValueError("newest: at least one transcript must be kept")
        self._folder = folder
        self._newest = newest
        self._most_bytes = most_bytes
        self._keeping = threading.Lock()

    def keep(self, *, namespace: str, job: str, decision_id: str, at: float, document: bytes) -> str:
        folder = self._folder / namespace / job
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}-{decision_id}.json"
        with self._keeping:
            replace_file(path, document, mode=0o600)
            self._prune(folder, keep=path)
            self._make_room(keep=path)
        return path.relative_to(self._folder).as_posix()

    def _prune(self, folder: Path, *, keep: Path) -> None:
        # What a killed process left half written goes as well.
        outdated = list(folder.glob(f"*{_PARTIAL}"))
        others = sorted(path for path in folder.glob("*.json") if path != keep)
        # The one just written stays, even when the clock was set back.
        outdated += others[: max(0, len(others) - (self._newest - 1))]
        for path in outdated:
            path.unlink(missing_ok=True)

    def _make_room(self, *, keep: Path) -> None:
        """The oldest go first, of the namespace that has the most: others' are not pushed out by it."""
        files = {path: path.stat() for path in self._folder.glob("*/*/*.json")}
        held: Counter[str] = Counter()
        for path, found in files.items():
            held[path.parents[1].name] += found.st_size
        oldest_first = sorted((path for path in files if path != keep), key=lambda path: (path.name, str(path)))
        while held.total() > self._most_bytes and oldest_first:
            largest = held.most_common(1)[0][0]
            path = next((path for path in oldest_first if path.parents[1].name == largest), oldest_first[0])
            oldest_first.remove(path)
            held[path.parents[1].name] -= files[path].st_size
            path.unlink(missing_ok=True)
