"""Chunks on their way to a real store and back: packed, resumed, verified, and no faster than allowed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.polling import within
from tests.support.weights.shelf import POLICY, D, content
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreTimeout, StoreUnauthorized
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.weights.store.chunk_fetch import DamagedChunk, MissingChunk, fetch_chunks
from trimtab.weights.store.chunk_writer import CHUNK_BYTES, ChunkWriter
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.keys import chunk_key
from trimtab.weights.store.manifest import Chunk, Piece
from trimtab.weights.store.rate import RateLimit

MIB = 1 << 20
MIXED = [3 * MIB, 4 * MIB, 2 * MIB, 20 * MIB, 1, 0, 8 * MIB, 100]


async def write(store: ObjectStore, payloads: list[bytes], **bounds: int) -> tuple[dict[str, Chunk], tuple[Piece, ...]]:
    with InFlight().publication() as publication:
        async with ChunkWriter(store, POLICY, epoch=3, publication=publication, deadline_s=D, **bounds) as writer:
            for block, payload in enumerate(payloads):
                await writer.add(block, "fast", payload, base=None, digest=hashlib.md5(payload).digest())
                under_way = list(writer._under_way.values())
                if bounds:
                    assert len(under_way) <= bounds["parallel"]
                    assert len(under_way) == 1 or sum(under_way) <= bounds["max_bytes_in_flight"]
            chunks, pieces = await writer.finish()
    return {chunk_key(POLICY, epoch=3, sha256=chunk.sha256): chunk for chunk in chunks}, pieces


async def fetch(
    store: ObjectStore, chunks: dict[str, Chunk], spool: Path, *, rate: RateLimit | None = None, parallel: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Path]:  # fmt: skip
    return await fetch_chunks(store, chunks, spool=spool, rate=rate, parallel=parallel, deadline_s=D, progress=progress)


class Requests:
    """What was asked of the store, at the time of asking: answers to a fetch that was cancelled may still come."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []

    def note(self, params: dict[str, Any], **_: Any) -> None:
        self.seen.append((params["url_path"].rpartition("/")[2], params["headers"].get("Range")))

    def sizes(self, chunks: dict[str, Chunk]) -> list[int]:
        whole = {chunk.sha256: chunk.size for chunk in chunks.values()}
        return [whole[name] if asked is None else _length(asked) for name, asked in self.seen]


def _length(asked: str) -> int:
    first, last = asked.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


@pytest.fixture
def requests(store: ObjectStore) -> Iterator[Requests]:
    requests = Requests()
    store.s3.meta.events.register("before-call.s3.GetObject", requests.note)
    yield requests
    store.s3.meta.events.unregister("before-call.s3.GetObject", requests.note)


def unlimited_time(bytes_per_s: float) -> RateLimit:
    """A rate whose sleeps take no time, only record that it passes."""
    return RateLimit(bytes_per_s, clock=(clock := Clock()).read, sleep=clock.sleep)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("limited", [False, True])
async def test_what_is_written_comes_back(store: ObjectStore, tmp_path: Path, *, limited: bool) -> None:
    payloads = [content(number, size) for number, size in enumerate(MIXED)]
    chunks, pieces = await write(store, payloads)
    sizes = [chunk.size for chunk in chunks.values()]
    assert sizes == [7 * MIB, 2 * MIB, 20 * MIB, 1, 8 * MIB, 100], "packed in order, large ones alone"
    seen: list[tuple[int, int]] = []
    rate = unlimited_time(64 * MIB) if limited else None
    paths = await fetch(store, chunks, tmp_path / "spool", rate=rate, progress=lambda *step: seen.append(step))
    order = list(chunks.values())
    for piece, payload in zip(pieces, payloads, strict=True):
        whole = paths[order[piece.chunk].sha256].read_bytes()
        assert whole[piece.offset : piece.offset + piece.size] == payload
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == sorted(paths)
    assert seen[-1] == (sum(sizes), sum(sizes))


async def test_uploads_keep_within_their_bounds(store: ObjectStore) -> None:
    payloads = [content(number, size) for number, size in enumerate([5 * MIB] * 6 + [12 * MIB] * 3)]
    chunks, _ = await write(store, payloads, parallel=3, max_bytes_in_flight=16 * MIB)
    assert len(chunks) == 9


async def test_equal_contents_are_one_chunk_and_what_is_there_is_not_sent_again(store: ObjectStore) -> None:
    payload = content("same", CHUNK_BYTES)
    chunks, pieces = await write(store, [payload, b"between", payload])
    assert len(chunks) == 2
    assert [piece.chunk for piece in pieces] == [0, 1, 0]
    before = {key: await store.head(key) for key in chunks}
    assert (await write(store, [payload, b"between", payload])) == (chunks, pieces)
    assert {key: await store.head(key) for key in chunks} == before


async def test_blocks_are_taken_in_order_only(store: ObjectStore) -> None:
    with InFlight().publication() as publication:
        async with ChunkWriter(store, POLICY, epoch=1, publication=publication, deadline_s=D) as writer:
            await writer.add(4, "fast", b"x", base=None, digest=bytes(16))
            with pytest.raises(ValueError, match="block 4 comes after block 4"):
                await writer.add(4, "fast", b"x", base=None, digest=bytes(16))


async def test_a_failed_upload_is_raised_and_the_others_end(object_store_settings: ObjectStoreSettings) -> None:
    stranger = object_store_settings.model_copy(update={"secret_access_key": SecretStr("wrong")})
    async with ObjectStore(stranger) as store:
        with pytest.raises(StoreUnauthorized):
            await write(store, [content(n, 5 * MIB) for n in range(6)], parallel=2, max_bytes_in_flight=16 * MIB)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_only_what_is_missing_is_fetched(store: ObjectStore, tmp_path: Path, requests: Requests) -> None:
    chunks, _ = await write(store, [content(n, size) for n, size in enumerate([6 * MIB, 7 * MIB, 20 * MIB])])
    (first, second, third) = chunks.values()
    paths = await fetch(store, chunks, tmp_path)
    assert sum(requests.sizes(chunks)) == 33 * MIB
    paths[first.sha256].unlink()
    damaged = bytearray(paths[second.sha256].read_bytes())
    damaged[1000] ^= 1
    paths[second.sha256].write_bytes(damaged)
    requests.seen.clear()
    assert await fetch(store, chunks, tmp_path) == paths
    assert sorted(requests.sizes(chunks)) == [6 * MIB, 7 * MIB], (
        "the one that is gone and the one that was damaged on disk"
    )
    requests.seen.clear()
    await fetch(store, chunks, tmp_path)
    assert requests.seen == []
    assert hashlib.sha256(paths[third.sha256].read_bytes()).hexdigest() == third.sha256


async def test_an_interrupted_limited_fetch_goes_on_at_the_byte(
    store: ObjectStore, tmp_path: Path, requests: Requests
) -> None:
    chunks, _ = await write(store, [content("one", 10 * MIB)])
    half = asyncio.Event()

    def watch(done: int, _: int) -> None:
        if done >= 5 * MIB:
            half.set()

    rate = unlimited_time(4 * MIB)  # ranges of one MiB
    task = asyncio.create_task(fetch(store, chunks, tmp_path, rate=rate, progress=watch))
    await within(half.wait(), D)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    (have,) = [path.stat().st_size for path in tmp_path.iterdir()]
    requests.seen.clear()
    (path,) = (await fetch(store, chunks, tmp_path, rate=rate)).values()
    assert path.read_bytes() == content("one", 10 * MIB)
    assert sum(requests.sizes(chunks)) == 10 * MIB - have <= 5 * MIB
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
async def test_an_interrupted_fetch_of_a_large_chunk_goes_on_by_ranges(
    store: ObjectStore, tmp_path: Path, requests: Requests
) -> None:
    chunks, _ = await write(store, [content("large", 72 * MIB)])
    first = asyncio.Event()
    task = asyncio.create_task(fetch(store, chunks, tmp_path, progress=lambda *_: first.set()))
    await within(first.wait(), D)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not (tmp_path / next(iter(chunks.values())).sha256).exists()
    requests.seen.clear()
    (path,) = (await fetch(store, chunks, tmp_path)).values()
    assert path.read_bytes() == content("large", 72 * MIB)
    assert 0 < sum(requests.sizes(chunks)) <= 64 * MIB
    assert list(tmp_path.iterdir()) == [path]


async def test_a_leftover_that_is_damaged_itself_does_not_condemn_the_object(
    store: ObjectStore, tmp_path: Path
) -> None:
    chunks, _ = await write(store, [content("one", 2 * MIB)])
    (chunk,) = chunks.values()
    (tmp_path / f"{chunk.sha256}.part").write_bytes(bytes(MIB))
    (path,) = (await fetch(store, chunks, tmp_path, rate=unlimited_time(4 * MIB))).values()
    assert path.read_bytes() == content("one", 2 * MIB)


def flipped(body: bytes) -> bytes:
    changed = bytearray(body)
    changed[len(body) // 2] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("size", [2 * MIB, pytest.param(20 * MIB, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "damage", [flipped, lambda body: body[:-1], lambda body: body + b"x"], ids=["flipped bit", "shorter", "longer"]
)
async def test_a_damaged_object_is_refused_and_leaves_nothing_behind(
    store: ObjectStore, tmp_path: Path, damage: Callable[[bytes], bytes], size: int, *, limited: bool
) -> None:
    body = content("victim", size)
    chunks, _ = await write(store, [body])
    ((key, chunk),) = chunks.items()
    # With the store's own digests matching the damaged body: only the SHA-256 in the manifest can tell.
    await store.put(key, damage(body))
    with pytest.raises(DamagedChunk) as refused:
        await fetch(store, chunks, tmp_path, rate=unlimited_time(16 * MIB) if limited else None)
    assert key in str(refused.value)
    assert chunk.sha256 in str(refused.value)
    assert list(tmp_path.iterdir()) == []


async def test_a_missing_chunk_says_so_and_the_others_are_kept(store: ObjectStore, tmp_path: Path) -> None:
    chunks, _ = await write(store, [content(n, 5 * MIB) for n in range(3)])
    gone = list(chunks)[2]
    await store.delete(gone)
    for rate in (None, unlimited_time(64 * MIB)):
        with pytest.raises(MissingChunk, match=f"{gone}.*plan again"):
            await fetch(store, chunks, tmp_path, rate=rate, parallel=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(c.sha256 for c in list(chunks.values())[:2])


async def test_the_rate_holds(store: ObjectStore, tmp_path: Path, requests: Requests) -> None:
    chunks, _ = await write(store, [content(n, 6 * MIB) for n in range(3)])
    clock = Clock()
    rate = RateLimit(2 * MIB, clock=clock.read, sleep=clock.sleep)
    steps: list[tuple[float, int]] = []
    await fetch(
        store, chunks, tmp_path, rate=rate, parallel=1, progress=lambda done, _: steps.append((clock.now, done))
    )
    assert max(requests.sizes(chunks)) == rate.range_bytes == MIB // 2
    assert clock.now == pytest.approx((18 * MIB - MIB // 2) / (2 * MIB))
    for now, done in steps:
        assert done <= now * 2 * MIB + rate.range_bytes


async def test_a_fetch_ends_by_its_deadline(store: ObjectStore, tmp_path: Path) -> None:
    chunks, _ = await write(store, [content("slow", 5 * MIB)])
    with pytest.raises(StoreTimeout, match="1 chunks could not be fetched within 0.5 s"):
        await fetch_chunks(store, chunks, spool=tmp_path, rate=RateLimit(1000.0), parallel=1, deadline_s=0.5)


async def test_a_chunk_that_another_process_may_delete_is_not_relied_on(store: ObjectStore, tmp_path: Path) -> None:
    """Of ranks that publish together one collects garbage, and does not know what the others have found in place."""
    payload = content("there", 1000)
    (first,) = (await write(store, [payload]))[0]
    async with ChunkWriter(store, POLICY, epoch=3, publication=None, deadline_s=D) as writer:
        await writer.add(0, "fast", payload, base=None, digest=hashlib.md5(payload).digest())
        (chunk,), (piece,) = await writer.finish()
    key = chunk_key(POLICY, epoch=3, sha256=chunk.sha256)
    assert key != first
    (path,) = (await fetch(store, {key: chunk}, tmp_path)).values()
    assert path.read_bytes()[piece.offset : piece.offset + piece.size] == payload
