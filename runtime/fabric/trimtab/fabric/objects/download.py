"""Reading large objects: several ranges at a time, going on where a cut connection or an earlier process stopped.

Every range is read on condition that the object is still the version we began with, and the whole is verified against
the writer's digest, so ranges of two versions are never put together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from trimtab.fabric.objects.checksums import digest_of, digest_of_file, verify
from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.errors import (
    ChecksumMismatch,
    ObjectChanged,
    ObjectTooLarge,
    PreconditionFailed,
    StoreTimeout,
    StoreUnavailable,
)
from trimtab.fabric.objects.upload import Progress, all_or_first_error

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class DownloadShape:
    """`max_bytes` is the most the caller is ready to take in all. Besides the target, memory for one chunk of a
    megabyte per parallel range is used.
    """

    max_bytes: int
    range_bytes: int = 16 * 1024 * 1024
    parallel: int = 4


async def download(
    store: ObjectStore, key: str, *, deadline_s: float, shape: DownloadShape, progress: Progress | None = None
) -> tuple[ObjectInfo, bytearray]:
    """The object in a buffer of exactly its size."""
    try:
        async with asyncio.timeout(deadline_s):
            info = await _look(store, key, shape=shape, deadline_s=deadline_s)
            buffer = bytearray(info.size)
            book = RangeBook(etag=info.etag, size=info.size, range_bytes=shape.range_bytes)
            target = _BufferTarget(buffer)
            await _Ranges(store, key, book, target, deadline_s=deadline_s).read(shape.parallel, progress)
            verify(await asyncio.to_thread(digest_of, buffer), expected=info.digest, where=store.where(key))
            return info, buffer
    except TimeoutError:
        raise StoreTimeout(f"download {store.where(key)}: not done within {deadline_s:.3g} s") from None


async def download_to_file(
    store: ObjectStore,
    key: str,
    path: Path,
    *,
    deadline_s: float,
    shape: DownloadShape,
    progress: Progress | None = None,
) -> ObjectInfo:
    """The object in a file that appears under `path` whole and verified, or not at all.

    Until then it is `<path>.partial` with `<path>.ranges` beside it; called again after an interruption it goes on
    from there if the object is still the same version.
    """
    partial, ranges = path.with_name(f"{path.name}.partial"), path.with_name(f"{path.name}.ranges")
    try:
        async with asyncio.timeout(deadline_s):
            info = await _look(store, key, shape=shape, deadline_s=deadline_s)
            book = await asyncio.to_thread(_open_partial, partial, ranges, info, shape)
            with partial.open("r+b", buffering=0) as file:
                target = _FileTarget(file.fileno())
                try:
                    await _Ranges(store, key, book, target, deadline_s=deadline_s).read(shape.parallel, progress)
                except ObjectChanged:
                    _discard(partial, ranges)
                    raise
                finally:
                    target.close()
                    if partial.exists():
                        _save(ranges, book)
            digest = await asyncio.to_thread(digest_of_file, partial)
            try:
                verify(digest, expected=info.digest, where=store.where(key))
            except ChecksumMismatch:
                _discard(partial, ranges)
                raise
            partial.replace(path)
            ranges.unlink(missing_ok=True)
            return info
    except TimeoutError:
        raise StoreTimeout(f"download {store.where(key)}: not done within {deadline_s:.3g} s") from None


async def _look(store: ObjectStore, key: str, *, shape: DownloadShape, deadline_s: float) -> ObjectInfo:
    info = await store.head(key, deadline_s=deadline_s)
    if info.size > shape.max_bytes:
        message = f"{store.where(key)} has {info.size} bytes, more than the {shape.max_bytes} asked for"
        raise ObjectTooLarge(message, size=info.size, limit=shape.max_bytes)
    return info


def _open_partial(partial: Path, ranges: Path, info: ObjectInfo, shape: DownloadShape) -> RangeBook:
    book = RangeBook.load(ranges, etag=info.etag, size=info.size, range_bytes=shape.range_bytes)
    if book is None or not partial.exists() or partial.stat().st_size != info.size:
        _discard(partial, ranges)
        book = RangeBook(etag=info.etag, size=info.size, range_bytes=shape.range_bytes)
        with partial.open("wb") as file:
            file.truncate(info.size)
    return book


def _save(ranges: Path, book: RangeBook) -> None:
    fresh = ranges.with_name(f"{ranges.name}.new")
    fresh.write_bytes(book.dump())
    fresh.replace(ranges)


def _discard(partial: Path, ranges: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    ranges.unlink(missing_ok=True)


class _Target(Protocol):
    """Where bytes go: `window` is what to read into, `commit` is called when it has been filled."""

    def window(self, position: int, count: int) -> memoryview: ...

    def commit(self, position: int, filled: memoryview) -> bool: ...


class _BufferTarget:
    def __init__(self, buffer: bytearray) -> None:
        self._view = memoryview(buffer)

    def window(self, position: int, count: int) -> memoryview:
        return self._view[position : position + count]

    def commit(self, position: int, filled: memoryview) -> bool:
        return True


class _FileTarget:
    """Closing waits for writes under way: a thread that outlives its download must not write to a reused descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = 0
        self._closed = False
        self._idle = threading.Condition()

    def window(self, position: int, count: int) -> memoryview:
        return memoryview(bytearray(count))

    def commit(self, position: int, filled: memoryview) -> bool:
        with self._idle:
            if self._closed:
                return False
            self._writing += 1
        try:
            while filled:
                written = os.pwrite(self._descriptor, filled, position)
                filled, position = filled[written:], position + written
        finally:
            with self._idle:
                self._writing -= 1
                self._idle.notify_all()
        return True

    def close(self) -> None:
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: self._writing == 0)


class _Ranges:
    """Reads the unfinished ranges of a book into a target, each in a thread of the store's pool."""

    def __init__(self, store: ObjectStore, key: str, book: RangeBook, target: _Target, *, deadline_s: float) -> None:
        self._store = store
        self._key = key
        self._book = book
        self._target = target
        self._deadline_s = deadline_s
        # Threads cannot be cancelled; this tells those of a download that was given up to stop at the next chunk.
        self._abandoned = threading.Event()

    async def read(self, parallel: int, progress: Progress | None) -> None:
        turn = asyncio.Semaphore(parallel)

        async def read_range(start: int) -> None:
            async with turn:
                await self._store.call(
                    lambda: self._read_rest(start),
                    doing=f"download {self._store.where(self._key)}",
                    deadline_s=self._deadline_s,
                )
            if progress is not None:
                progress(self._book.received_bytes, self._book.size)

        try:
            await all_or_first_error(read_range(start) for start in self._book.unfinished())
        except PreconditionFailed:
            message = f"{self._store.where(self._key)} was replaced while it was being read"
            raise ObjectChanged(message) from None
        finally:
            self._abandoned.set()

    def _read_rest(self, start: int) -> None:
        """One attempt at what is missing of a range; what arrives before a failure is kept."""
        book = self._book
        position, end = start + book.received.get(start, 0), start + book.length(start)
        answer = self._store.s3.get_object(
            Bucket=self._store.bucket,
            Key=self._store.full_key(self._key),
            Range=f"bytes={position}-{end - 1}",
            IfMatch=book.etag,
        )
        if answer["ETag"] != book.etag or answer.get("ContentRange", "") != f"bytes {position}-{end - 1}/{book.size}":
            raise ObjectChanged(f"{self._store.where(self._key)} answered with another version or range than asked for")
        with answer["Body"] as stream:
            body: Any = stream  # its stubs have readinto wrong
            while position < end and not self._abandoned.is_set():
                window = self._target.window(position, min(_CHUNK_BYTES, end - position))
                count = body.readinto(window)
                if not count:
                    message = f"{self._store.where(self._key)} ended at byte {position} of range {start}-{end - 1}"
                    raise StoreUnavailable(message)
                if not self._target.commit(position, window[:count]):
                    return
                position += count
                book.received[start] = position - start


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
