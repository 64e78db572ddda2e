"""The chronicle as a file of JSON lines that is only ever appended to, so that a resumed job goes on with its story."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trimtab.cli.chronicle.records import Record

FILE_NAME = "history.jsonl"
_MAX_BYTES = 1 << 20
"""That are read on at once."""
_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class UnreadableChronicle(ValueError):
    """A line that no version of `trimtab run` has written."""


class ChronicleFile:
    """Open for appending. Use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE_NAME
        _drop_half_a_line(path)
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""

    def append(self, record: Record) -> None:
        """Handed to the system at once: what a killed process has told is kept. What a full disk does not take goes
        with the next one."""
        self._unwritten += _encoder.encode(record) + b"\n"
        try:
            written = self._file.write(self._unwritten)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        else:
            self._unwritten = self._unwritten[written:]

    def __enter__(self) -> ChronicleFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read(folder: Path) -> Iterator[Record]:
    """In the order of writing. A last line that is still being written is left out; no file is an empty chronicle."""
    path = folder / FILE_NAME
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError as error:
                raise UnreadableChronicle(f"{path}, line {number}: {error}") from None


def read_on(folder: Path, offset: int) -> tuple[list[Record], int]:
    """What was written after an offset, up to a bound, and the offset after that. An offset is the end of a line."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return [], offset
    whole = content[: content.rfind(b"\n") + 1]
    try:
        return [_decoder.decode(line) for line in whole.splitlines()], offset + len(whole)
    except msgspec.DecodeError as error:
        raise UnreadableChronicle(f"{path}, after byte {offset}: {error}") from None


def _drop_half_a_line(path: Path) -> None:
    """What a process that was killed in the middle of a line has left."""
    if not path.exists():
        return
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
