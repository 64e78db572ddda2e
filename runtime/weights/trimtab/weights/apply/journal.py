"""The redo journal of an update: every changed element with its new value, on disk, so no second model is in memory.

Values are absolute. Applying a journal twice, or again after a part of it, gives the same as applying it once.

A file is: magic, format and header length; the header as JSON; the payloads, each at a multiple of eight; an index with
one entry per record; a trailer. The trailer's checksum covers header and index, the index has one for each payload:
threads can write payloads in any order and none has to be read again.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from trimtab.weights.apply.copy_files import DamagedJournal, Held, InvalidUpdate
from trimtab.weights.apply.durable import SharedFile
from trimtab.weights.layout import Block, StateLayout

FORMAT = 1
_MAGIC = b"TRIMJRNL"
_PREAMBLE = struct.Struct("<8sII")
_ENTRY = struct.Struct("<IIQQ16s")
_TRAILER = struct.Struct("<QQ16s8s")
_ALIGNMENT = 8
_CHUNK_BYTES = 1 << 20
PIECE_ELEMENTS = 1 << 18
"""How many elements are changed at a time: numpy makes 8-byte indices of the positions, so this bounds the memory."""


class Kind(enum.IntEnum):
    """`WHOLE` has every element of the block, `SPARSE` has positions and the values at them."""

    SPARSE = 1
    WHOLE = 2


class Base(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version an update changes."""

    epoch: int
    version: int
    root: str

    @classmethod
    def of(cls, held: Held) -> Base:
        return cls(epoch=held.epoch, version=held.version, root=held.root)


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    layout_digest: str
    base: Base
    target: Held


@dataclass(frozen=True)
class Record:
    """The new values of one block. `count` is of elements."""

    block: int
    kind: Kind
    count: int
    offset: int
    digest: bytes

    def spans(self, block: Block) -> Iterator[tuple[int, int]]:
        """Where its arrays lie: positions, if it has any, then values."""
        start = self.offset
        if self.kind is Kind.SPARSE:
            yield start, start + 4 * self.count
            start += _aligned(4 * self.count)
        yield start, start + block.element.width * self.count


class Journal:
    """A complete journal, mapped. It stays readable until `close`, also when its file is gone."""

    def __init__(
        self, header: JournalHeader, layout: StateLayout, records: tuple[Record, ...], pages: mmap.mmap
    ) -> None:
        self.header = header
        self.layout = layout
        self.records = records
        self._map = pages

    @classmethod
    def open(cls, path: Path, layout: StateLayout) -> Journal:
        """Reads and verifies all of it. Raises FileNotFoundError, and DamagedJournal for anything else than a whole
        journal of this layout.
        """
        with path.open("rb", buffering=0) as file:
            try:
                header, records = _verified(file, layout)
            except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
                raise DamagedJournal(f"{path} cannot be used: {error}") from None
            return cls(header, layout, records, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def positions(self, record: Record) -> npt.NDArray[np.uint32] | None:
        """Element indices inside the block; None when it is all of them."""
        if record.kind is Kind.WHOLE:
            return None
        start, _ = next(record.spans(self.layout.blocks[record.block]))
        return np.frombuffer(self._map, dtype=np.uint32, count=record.count, offset=start)

    def values(self, record: Record) -> npt.NDArray[np.unsignedinteger]:
        block = self.layout.blocks[record.block]
        start, _ = list(record.spans(block))[-1]
        return np.frombuffer(self._map, dtype=f"u{block.element.width}", count=record.count, offset=start)

    def apply(
        self, record: Record, elements: npt.NDArray[np.unsignedinteger], *, piece_elements: int = PIECE_ELEMENTS
    ) -> None:
        """Changes a block's elements in place."""
        positions, values = self.positions(record), self.values(record)
        for start in range(0, record.count, piece_elements):
            piece = slice(start, start + piece_elements)
            elements[piece if positions is None else positions[piece]] = values[piece]

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # arrays taken from it are still in use
            self._map.close()


class JournalWriter:
    """Several threads may put different blocks at a time."""

    def __init__(self, path: Path, header: JournalHeader, layout: StateLayout) -> None:
        """Raises FileExistsError."""
        encoded = msgspec.json.encode(header)
        self._header = header
        self._head = _PREAMBLE.pack(_MAGIC, FORMAT, len(encoded)) + encoded
        self._layout = layout
        self._lock = threading.Lock()
        self._end = _aligned(len(self._head))
        self._sealed = False
        self._claimed: set[int] = set()
        self._records: list[Record] = []
        self._file = SharedFile(path)
        self._file.write(self._head, offset=0)

    def put(self, block: int, kind: Kind, *, count: int, arrays: tuple[npt.NDArray[np.generic], ...]) -> None:
        with self._lock:
            if self._sealed:
                raise InvalidUpdate(f"block {block} comes too late; the update is prepared")
            if block in self._claimed:
                raise InvalidUpdate(f"block {block} was put before; an update has each block once")
            self._claimed.add(block)
            offset = at = self._end
            self._end += sum(_aligned(array.nbytes) for array in arrays)
        hasher = xxhash.xxh3_128()
        for array in arrays:
            hasher.update(array.data)
            self._file.write(array.data, offset=at)
            at += _aligned(array.nbytes)
        with self._lock:
            self._records.append(Record(block, kind, count, offset, hasher.digest()))

    def seal(self, *, required: set[int]) -> Journal:
        """Completes the journal. A disk that is full or broken shows here, before anything was changed."""
        with self._lock:
            if missing := required - self._claimed:
                raise InvalidUpdate(f"the blocks {sorted(missing)} differ in the target and were not put")
            if unfinished := self._claimed - {record.block for record in self._records}:
                raise InvalidUpdate(f"putting the blocks {sorted(unfinished)} failed or is not over")
            self._sealed = True
            records = tuple(sorted(self._records, key=lambda record: record.block))
        index = b"".join(
            _ENTRY.pack(record.block, record.kind, record.count, record.offset, record.digest) for record in records
        )
        checksum = xxhash.xxh3_128_digest(self._head + index)
        self._file.write(index + _TRAILER.pack(self._end, len(records), checksum, _MAGIC), offset=self._end)
        self._file.sync()
        journal = Journal(self._header, self._layout, records, self._file.map())
        self._file.close()
        return journal

    def close(self) -> None:
        self._file.close()


def _verified(file: BinaryIO, layout: StateLayout) -> tuple[JournalHeader, tuple[Record, ...]]:
    """Reads with calls, not through a mapping, where an error of the disk would end the process."""
    size = os.fstat(file.fileno()).st_size
    magic, version, header_bytes = _PREAMBLE.unpack(_read(file, 0, _PREAMBLE.size))
    if (magic, version) != (_MAGIC, FORMAT):
        raise ValueError("it is not a journal of this format")
    index_at, count, checksum, magic = _TRAILER.unpack(_read(file, size - _TRAILER.size, _TRAILER.size))
    if magic != _MAGIC or index_at + count * _ENTRY.size + _TRAILER.size != size:
        raise ValueError("it has no end")
    head = _read(file, 0, _PREAMBLE.size + header_bytes)
    index = _read(file, index_at, count * _ENTRY.size)
    if xxhash.xxh3_128_digest(head + index) != checksum:
        raise ValueError("the checksum of its index is wrong")
    header = msgspec.json.decode(head[_PREAMBLE.size :], type=JournalHeader)
    if header.layout_digest != layout.digest:
        raise ValueError("it is for weights of another layout")
    header.target.check(layout)
    records = tuple(
        Record(block, Kind(kind), elements, offset, digest)
        for block, kind, elements, offset, digest in _ENTRY.iter_unpack(index)
    )
    for record in records:
        hasher = xxhash.xxh3_128()
        for start, end in record.spans(layout.blocks[record.block]):
            _hash(file, start, end, hasher.update)
        if hasher.digest() != record.digest:
            raise ValueError(f"the checksum of block {record.block} is wrong")
    return header, records


def _hash(file: BinaryIO, start: int, end: int, update: Callable[[bytes], None]) -> None:
    for offset in range(start, end, _CHUNK_BYTES):
        update(_read(file, offset, min(_CHUNK_BYTES, end - offset)))


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if offset < 0 or offset + length > size:  # asked first: a damaged length must not become a huge buffer
        raise ValueError(f"it is cut short at {size} bytes")
    return os.pread(file.fileno(), length, offset)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
