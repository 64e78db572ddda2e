"""Rows of trained steps in object storage: JSON lines under zstd, a few objects for each step and rank, so that people
can read them long after the stream has let go of them, with Trimtab or without.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import zstandard

from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.trajectory import Logprobs, TokenIds, Trajectory

MAX_PART_BYTES = 64 << 20
"""Of JSON in an object, which is a few MiB compressed. The last row may exceed it."""
MAX_LINE_BYTES = 1 << 30
_LEVEL = 6
_DIGITS = 6
ARCHIVE = "archive/"
_KEY = re.compile(rf"{ARCHIVE}([^/]+)/([0-9]{{8,10}})/[0-9]{{4,6}}-[0-9]{{3,6}}\.jsonl\.zst", re.ASCII)


class ArchiveDamaged(ValueError):
    """An object of the archive is not what a trainer writes."""


class ArchivedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    step: int
    """That trained on it first, counted from 0 as the ledger does."""
    sequence: int
    """Where it lay in the stream of trajectories."""
    row: Trajectory


@dataclass(frozen=True, kw_only=True)
class ArchivePlace:
    """What an object of the archive is of."""

    policy: str
    """Whose trainer wrote it; its rows may be of others."""
    step: int


def archive_of(policy: str) -> str:
    """Where the steps of a policy's trainer lie."""
    return f"{ARCHIVE}{policy}/"


def part_key(policy: str, *, step: int, rank: int, part: int) -> str:
    return f"{archive_of(policy)}{step:08d}/{rank:04d}-{part:03d}.jsonl.zst"


def parse_key(key: str) -> ArchivePlace | None:
    """None for a key that no trainer writes."""
    found = _KEY.fullmatch(key)
    return None if found is None else ArchivePlace(policy=found[1], step=int(found[2]))


def written_parts(rows: Iterable[ArchivedRow], *, max_bytes: int = MAX_PART_BYTES) -> Iterator[bytes]:
    """The bodies of the objects that hold these rows. Log-probabilities are rounded to six digits: whole float32 would
    be most of the archive, and nobody trains on it.
    """
    encoder = msgspec.json.Encoder(enc_hook=_plain)
    lines: list[bytes] = []
    size = 0
    for row in rows:
        lines.append(encoder.encode(row))
        size += len(lines[-1]) + 1
        if size >= max_bytes:
            yield _compressed(lines)
            lines, size = [], 0
    if lines:
        yield _compressed(lines)


def read_part(body: bytes) -> Iterator[ArchivedRow]:
    """Raises ArchiveDamaged, after the rows before the damage."""
    decoder = msgspec.json.Decoder(ArchivedRow, dec_hook=_array)
    count = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as plain:
            buffered = io.BufferedReader(plain)
            while line := buffered.readline(MAX_LINE_BYTES):
                yield decoder.decode(line)
                count += 1
    except (zstandard.ZstdError, msgspec.DecodeError, WireError, UnicodeDecodeError, RecursionError) as error:
        raise ArchiveDamaged(str(error)) from None
    if not count:
        raise ArchiveDamaged("no row is in it: it is cut short")


def _compressed(lines: list[bytes]) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(b"\n".join(lines) + b"\n")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.round(value.astype(np.float64), _DIGITS).tolist() if value.dtype.kind == "f" else value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be archived")


def _array(kind: Any, value: Any) -> Any:
    if kind == TokenIds:
        return np.asarray(value, dtype=np.int32)
    if kind == Logprobs:
        return np.asarray(value, dtype=np.float32)
    raise TypeError(f"no field of a row has the type {kind}")
