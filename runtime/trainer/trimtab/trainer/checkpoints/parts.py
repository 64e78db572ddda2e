"""A file of a checkpoint as storages take it: part by part, several at a time, each hashed when it is read.

Parts are small enough that many are on their way at once, and large enough that what a request costs is nothing beside
them. They are what is copied on the way, so they are the memory that writing and reading take.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from trimtab.fabric.objects.upload import MAX_PARTS, PartSource

PART_BYTES = 16 << 20
AT_ONCE = 8
"""Half of the connections to the store: weights go out beside a checkpoint."""
_HEADER_LENGTH_BYTES = 8


class CheckpointParts(PartSource, Protocol):
    """A safetensors file."""

    @property
    def header(self) -> bytes: ...


def part_bytes_for(size: int, *, at_least: int = PART_BYTES) -> int:
    """Larger for files that would have more parts than S3 takes, by a power of two, in which pinned memory is had."""
    times = -(-size // (at_least * MAX_PARTS))
    return at_least << max(0, times - 1).bit_length()


class HashedParts:
    """Remembers the SHA-256 of every part that was read. A part may be read again, and then it is the same."""

    def __init__(self, source: CheckpointParts) -> None:
        self._source = source
        self._digests: dict[int, str] = {}

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def part_bytes(self) -> int:
        return self._source.part_bytes

    def part(self, number: int) -> bytearray:
        body = self._source.part(number)
        self._digests[number] = hashlib.sha256(body).hexdigest()
        return body

    @property
    def digests(self) -> tuple[str, ...]:
        """In order, once all have been read."""
        return tuple(self._digests[number] for number in sorted(self._digests))


@dataclass(frozen=True)
class FileOnDisk:
    """A safetensors file of this machine, for trainers that make one."""

    path: Path

    @cached_property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def part_bytes(self) -> int:
        return part_bytes_for(self.size)

    @cached_property
    def header(self) -> bytes:
        with self.path.open("rb") as file:
            length = file.read(_HEADER_LENGTH_BYTES)
            header = length + file.read(int.from_bytes(length, "little"))
        if len(header) < _HEADER_LENGTH_BYTES + int.from_bytes(length, "little"):
            raise ValueError(f"{self.path} is not a safetensors file")
        return header

    def part(self, number: int) -> bytearray:
        body = bytearray(self.part_bytes)
        with self.path.open("rb") as file:
            file.seek(number * self.part_bytes)
            del body[file.readinto(body) :]
        return body
