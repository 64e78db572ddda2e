"""A container's log as a kubelet keeps it: one file for each instance, each line with its time; and how it is read."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_LINE_LIMIT = 16 * 1024
_ROTATE_AT_BYTES = 32 * 1024 * 1024
_POLL_S = 0.1
_INSTANCES_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What `kubectl logs` can ask for."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


def instance_file(folder: Path, restarts: int) -> Path:
    return folder / f"{restarts}.log"


class LogWriter:
    """Takes a process's output in pieces of any size. Lines longer than the limit are kept in parts."""

    def __init__(self, path: Path, *, clock: Callable[[], float], rotate_at_bytes: int = _ROTATE_AT_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._rotate_at_bytes = rotate_at_bytes
        self._rest = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab")
        self._size = self._file.tell()

    def write(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        stamp = _stamp(self._clock())
        for line in lines:
            self._entry(stamp, line, whole=True)
        while len(self._rest) > _LINE_LIMIT:
            part, self._rest = self._rest[:_LINE_LIMIT], self._rest[_LINE_LIMIT:]
            self._entry(stamp, part, whole=False)
        self._file.flush()

    def close(self) -> None:
        if self._rest:
            self._entry(_stamp(self._clock()), self._rest, whole=False)
            self._rest = b""
        self._file.close()

    def _entry(self, stamp: bytes, line: bytes, *, whole: bool) -> None:
        if self._size > self._rotate_at_bytes:
            self._file.close()
            self._path.replace(_rotated(self._path))
            self._file = self._path.open("ab")
            self._size = 0
        self._size += self._file.write(b"%s %s %s\n" % (stamp, b"F" if whole else b"P", line))


def forget_older_instances(folder: Path, *, restarts: int) -> None:
    """Only the newest instance and the one before it are kept: `kubectl logs --previous` reaches no further."""
    for path in folder.glob("*.log*"):
        if int(path.name.split(".")[0]) <= restarts - _INSTANCES_KEPT:
            path.unlink(missing_ok=True)


def tail(path: Path, *, lines: int, limit: int) -> str:
    """The end of a log as plain text."""
    kept: deque[bytes] = deque(maxlen=lines)
    for entry in _stored(path):
        kept.append(_text(entry))
    return b"".join(kept)[-limit:].decode(errors="replace")


async def read_log(path: Path, options: LogOptions, *, alive: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """What was asked for; with `follow`, what is written meanwhile too, as long as the container is `alive`."""
    left = options.limit_bytes
    entries: Iterator[bytes] = (entry for entry in _stored(path) if _is_since(entry, options.since))
    if options.tail_lines is not None:
        entries = iter(deque(entries, maxlen=options.tail_lines))
    # The place to go on from, taken before anything is sent: what is written meanwhile belongs to what follows.
    follower = _Follower(path) if options.follow else None
    try:
        for entry in entries:
            piece = (entry.split(b" ", 1)[0] + b" " if options.timestamps else b"") + _text(entry)
            if left is not None:
                piece, left = piece[:left], left - len(piece)
            yield piece
            if left is not None and left <= 0:
                return
        while follower is not None:
            last_round = not alive()
            for entry in follower.new_entries():
                yield (entry.split(b" ", 1)[0] + b" " if options.timestamps else b"") + _text(entry)
            if last_round:
                return
            await asyncio.sleep(_POLL_S)
    finally:
        if follower is not None:
            follower.close()


class _Follower:
    """Reads on from the end of the file as it is now, over its rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._file = path.open("rb")
        self._file.seek(0, os.SEEK_END)

    def new_entries(self) -> Iterator[bytes]:
        while True:
            piece = self._file.read(65_536)
            if piece:
                *entries, self._rest = (self._rest + piece).split(b"\n")
                yield from (entry + b"\n" for entry in entries)
            elif self._path.exists() and os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino:
                self._file.close()
                self._file = self._path.open("rb")
            else:
                return

    def close(self) -> None:
        self._file.close()


def _stored(path: Path) -> Iterator[bytes]:
    for file in (_rotated(path), path):
        if file.exists():
            with file.open("rb") as log:
                yield from log


def _rotated(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _is_since(entry: bytes, since: float | None) -> bool:
    if since is None:
        return True
    return entry.split(b" ", 1)[0] >= _stamp(since)


def _stamp(epoch_s: float) -> bytes:
    # Fixed width, so that stamps compare as text; nine digits, as a kubelet's have.
    moment = datetime.datetime.fromtimestamp(epoch_s, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


def _text(entry: bytes) -> bytes:
    _, kind, line = entry.split(b" ", 2)
    return line if kind == b"F" else line.removesuffix(b"\n")
