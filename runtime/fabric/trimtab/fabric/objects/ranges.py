"""Which byte ranges of an object are already here: pure bookkeeping, and its small file next to a partial download."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec


class _State(msgspec.Struct, frozen=True):
    etag: str
    size: int
    range_bytes: int
    received: dict[int, int]


@dataclass
class RangeBook:
    """Ranges by their start, with the bytes received of each. Valid for one version of one object."""

    etag: str
    size: int
    range_bytes: int
    received: dict[int, int] = field(default_factory=dict)

    def length(self, start: int) -> int:
        return min(self.range_bytes, self.size - start)

    def unfinished(self) -> list[int]:
        starts = range(0, self.size, self.range_bytes)
        return [start for start in starts if self.received.get(start, 0) < self.length(start)]

    @property
    def received_bytes(self) -> int:
        return sum(self.received.values())

    def dump(self) -> bytes:
        return msgspec.json.encode(_State(self.etag, self.size, self.range_bytes, self.received))

    @classmethod
    def load(cls, path: Path, *, etag: str, size: int, range_bytes: int) -> Self | None:
        """The book of an earlier, interrupted download of the same version; None when there is none that fits."""
        try:
            state = msgspec.json.decode(path.read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError):
            return None
        if (state.etag, state.size, state.range_bytes) != (etag, size, range_bytes):
            return None
        book = cls(etag=etag, size=size, range_bytes=range_bytes, received=dict(state.received))
        starts = range(0, size, range_bytes)
        sane = all(start in starts and 0 <= count <= book.length(start) for start, count in book.received.items())
        return book if sane else None
