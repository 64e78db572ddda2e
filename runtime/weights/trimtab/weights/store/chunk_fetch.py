"""Brings chunks to this machine, each as a file named by its SHA-256 that appears whole and verified or not at all.

What an interrupted fetch left is used by the next one, down to the byte for large chunks and under a rate limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download_to_file
from trimtab.fabric.objects.errors import (
    ChecksumMismatch,
    ObjectNotFound,
    ObjectTooLarge,
    StoreTimeout,
    StoreUnavailable,
)
from trimtab.fabric.objects.upload import Progress, all_or_first_error
from trimtab.weights.store.chunk_writer import CHUNK_BYTES
from trimtab.weights.store.manifest import Chunk
from trimtab.weights.store.rate import RateLimit

Way = Callable[[str, Chunk], Awaitable[None]]

_CHUNK_FILE = re.compile(r"[0-9a-f]{64}(\.|\Z)", re.ASCII)
_RANGES = 4
_READ_BYTES = 4 << 20


class DamagedChunk(RuntimeError):
    """The object in the store does not have the content that a manifest names."""


class MissingChunk(RuntimeError):
    """A chunk that a manifest names is not in the store: it was collected, or the store has lost it."""


async def fetch_chunks(
    store: ObjectStore,
    chunks: Mapping[str, Chunk],
    *,
    spool: Path,
    rate: RateLimit | None,
    parallel: int,
    deadline_s: float,
    progress: Progress | None = None,
    range_bytes: int = CHUNK_BYTES,
) -> dict[str, Path]:
    """The chunks, given by key, as files by SHA-256. One fetch at a time may use a spool.

    About `parallel` requests run at once; chunks larger than `range_bytes` take several. `progress(done, total)` counts
    what was there already as done.
    """
    wanted = {chunk.sha256: (key, chunk) for key, chunk in chunks.items()}
    sizes = {sha256: chunk.size for sha256, (_, chunk) in wanted.items()}
    fetch = _Fetch(store, spool, sizes, deadline_s, progress, range_bytes=range_bytes)
    try:
        async with asyncio.timeout(deadline_s):
            await asyncio.to_thread(spool.mkdir, parents=True, exist_ok=True)
            if rate is not None:
                await fetch.all(wanted.values(), partial(fetch.by_rate, rate), parallel=parallel)
            else:
                large = [item for item in wanted.values() if item[1].size > range_bytes]
                small = [item for item in wanted.values() if item[1].size <= range_bytes]
                await fetch.all(large, fetch.by_ranges, parallel=max(1, parallel // _RANGES))
                await fetch.all(small, fetch.at_once, parallel=parallel)
    except TimeoutError:
        raise StoreTimeout(f"{len(chunks)} chunks could not be fetched within {deadline_s:.3g} s") from None
    return {sha256: spool / sha256 for sha256 in wanted}


def clear_spool(spool: Path) -> None:
    """Removes all that fetches have left here, and nothing else."""
    for path in spool.iterdir():
        if _CHUNK_FILE.match(path.name):
            path.unlink(missing_ok=True)


class _Fetch:
    """Three ways to the same end: a file beside the place of the chunk, which takes its place once it is verified."""

    def __init__(
        self,
        store: ObjectStore,
        spool: Path,
        sizes: Mapping[str, int],
        deadline_s: float,
        progress: Progress | None,
        *,
        range_bytes: int,
    ) -> None:
        self._store = store
        self._spool = spool
        self._total = sum(sizes.values())
        self._done = dict.fromkeys(sizes, 0)
        self._deadline_s = deadline_s
        self._progress = progress
        self._range_bytes = range_bytes

    async def all(self, items: Iterable[tuple[str, Chunk]], way: Way, *, parallel: int) -> None:
        turn = asyncio.Semaphore(parallel)

        async def one(key: str, chunk: Chunk) -> None:
            async with turn:
                if await self._has(chunk):
                    return
                # What lies here from before may be damaged itself, which only a second, clean attempt can tell.
                resumed = any(path.exists() for path in self._beginnings(chunk))
                for once_more in (resumed, False):
                    try:
                        await way(key, chunk)
                    except DamagedChunk:
                        self._discard(chunk)
                        if not once_more:
                            raise
                    else:
                        return

        try:
            await all_or_first_error(one(key, chunk) for key, chunk in items)
        except ObjectNotFound as error:
            raise MissingChunk(f"a chunk is missing: {error}; plan again from the pointer") from None

    async def _has(self, chunk: Chunk) -> bool:
        """Verified again: a file can be damaged by whatever interrupted the last fetch."""
        path = self._spool / chunk.sha256
        for candidate in (path, self._whole(chunk)):
            if await asyncio.to_thread(_verified, candidate, chunk, path):
                self._note(chunk, chunk.size)
                return True
        return False

    async def at_once(self, key: str, chunk: Chunk) -> None:
        try:
            stored = await self._store.get(key, max_bytes=chunk.size, deadline_s=self._deadline_s)
        except (ChecksumMismatch, ObjectTooLarge) as error:
            raise self._damaged(key, chunk, str(error)) from None
        await asyncio.to_thread(self._part(chunk).write_bytes, stored.body)
        await self._settle(key, chunk, self._part(chunk))

    async def by_ranges(self, key: str, chunk: Chunk) -> None:
        whole = self._whole(chunk)
        try:
            await download_to_file(
                self._store,
                key,
                whole,
                deadline_s=self._deadline_s,
                shape=DownloadShape(max_bytes=chunk.size, range_bytes=self._range_bytes, parallel=_RANGES),
                progress=lambda done, _: self._note(chunk, done),
            )
        except (ChecksumMismatch, ObjectTooLarge) as error:
            raise self._damaged(key, chunk, str(error)) from None
        await self._settle(key, chunk, whole)

    async def by_rate(self, rate: RateLimit, key: str, chunk: Chunk) -> None:
        """One small range after the other: the length of the file is how far it got."""
        part = self._part(chunk)
        have = await asyncio.to_thread(_length, part)
        if have > chunk.size:
            part.unlink()
            have = 0
        while have < chunk.size or not part.exists():
            count = min(rate.range_bytes, chunk.size - have)
            await rate.take(count)
            body = await self._store.call(
                partial(self._read_range, key, chunk, have, count),
                doing=f"get a range of {self._store.where(key)}",
                deadline_s=self._deadline_s,
            )
            await asyncio.to_thread(_write_at, part, have, body)
            have += count
            self._note(chunk, have)
        await self._settle(key, chunk, part)

    def _read_range(self, key: str, chunk: Chunk, start: int, count: int) -> bytes:
        if not count:
            return b""
        answer = self._store.s3.get_object(
            Bucket=self._store.bucket,
            Key=self._store.full_key(key),
            Range=f"bytes={start}-{start + count - 1}",
        )
        with answer["Body"] as stream:
            if (size := answer["ContentRange"].rpartition("/")[2]) != str(chunk.size):
                raise self._damaged(key, chunk, f"it has {size} bytes instead of {chunk.size}")
            body = stream.read()
        if len(body) != count:
            raise StoreUnavailable(f"{self._store.where(key)} ended after {len(body)} of {count} bytes")
        return body

    async def _settle(self, key: str, chunk: Chunk, file: Path) -> None:
        if not await asyncio.to_thread(_verified, file, chunk, self._spool / chunk.sha256):
            raise self._damaged(key, chunk, "its content has another digest")
        self._discard(chunk)
        self._note(chunk, chunk.size)

    def _damaged(self, key: str, chunk: Chunk, reason: str) -> DamagedChunk:
        return DamagedChunk(f"{self._store.where(key)} is not the chunk with SHA-256 {chunk.sha256}: {reason}")

    def _discard(self, chunk: Chunk) -> None:
        for path in self._beginnings(chunk):
            path.unlink(missing_ok=True)

    def _beginnings(self, chunk: Chunk) -> tuple[Path, ...]:
        """Whatever a fetch of one kind or the other may have begun."""
        whole = self._whole(chunk)
        return (
            self._part(chunk),
            whole,
            whole.with_name(f"{whole.name}.partial"),
            whole.with_name(f"{whole.name}.ranges"),
        )

    def _part(self, chunk: Chunk) -> Path:
        return self._spool / f"{chunk.sha256}.part"

    def _whole(self, chunk: Chunk) -> Path:
        return self._spool / f"{chunk.sha256}.whole"

    def _note(self, chunk: Chunk, done: int) -> None:
        self._done[chunk.sha256] = done
        if self._progress is not None:
            self._progress(sum(self._done.values()), self._total)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write_at(path: Path, offset: int, body: bytes) -> None:
    """Not just appended: the thread of a fetch that was cancelled may come late, when the next one has gone on."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(offset)
        file.write(body)


def _verified(file: Path, chunk: Chunk, path: Path) -> bool:
    """Moves the file to `path` if it is the chunk, and removes it if it is not."""
    if not file.exists():
        return False
    hasher = hashlib.sha256()
    with file.open("rb", buffering=0) as content:
        while part := content.read(_READ_BYTES):
            hasher.update(part)
    if hasher.hexdigest() != chunk.sha256 or file.stat().st_size != chunk.size:
        file.unlink()
        return False
    file.replace(path)
    return True
