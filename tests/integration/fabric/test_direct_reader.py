"""Following a bucket without a consumer, as users do that may not make one: nothing is missed, nothing twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import Change, KvWatch, Removed, SnapshotComplete
from trimtab.fabric.bus.topology import BucketSpec
from trimtab.fabric.settings import NatsSettings


@pytest.fixture
async def writer(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="writer") as bus:
        yield bus


@pytest.fixture
async def reader(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings.model_copy(update={"makes_streams": False}), name="reader") as bus:
        yield bus


def _bucket(**fields: float) -> BucketSpec:
    return BucketSpec(name=f"b{uuid.uuid4().hex[:12]}", **fields)  # type: ignore[arg-type]


async def _next(watch: KvWatch) -> Change:
    return await watch.next(deadline_s=60.0)


async def test_what_is_there_then_what_follows(writer: Bus, reader: Bus) -> None:
    written = await KeyValue.declare(writer, _bucket(), deadline_s=60.0)
    for value in range(3):
        await written.put("a", f"{value}".encode())
        await written.put("b.c", f"{value}".encode())
    async with KvWatch(KeyValue(reader, written.spec)) as watch:
        assert {(await _next(watch)).key for _ in range(2)} == {"a", "b.c"}  # type: ignore[union-attr]
        assert await _next(watch) == SnapshotComplete()
        with pytest.raises(BusTimeout):
            await watch.next(deadline_s=0.3)
        revision = await written.put("a", b"new")
        assert await _next(watch) == Entry("a", b"new", revision)
        await written.delete("a")
        removed = await _next(watch)
        assert isinstance(removed, Removed)
        assert removed.key == "a"


async def test_an_empty_bucket_says_so_at_once(writer: Bus, reader: Bus) -> None:
    written = await KeyValue.declare(writer, _bucket(), deadline_s=60.0)
    async with KvWatch(KeyValue(reader, written.spec), keys="a") as watch:
        assert await _next(watch) == SnapshotComplete()
        await written.put("other", b"1")
        revision = await written.put("a", b"2")
        assert await _next(watch) == Entry("a", b"2", revision)


async def test_more_than_one_batch_and_each_change_of_a_quick_writer_at_most_once(writer: Bus, reader: Bus) -> None:
    written = await KeyValue.declare(writer, _bucket(), deadline_s=60.0)
    await asyncio.gather(*(written.put(f"k{number}", b"0") for number in range(600)))
    seen: list[int] = []
    keys: set[str] = set()
    async with KvWatch(KeyValue(reader, written.spec)) as watch:
        while not isinstance(change := await _next(watch), SnapshotComplete):
            seen.append(change.revision)
            keys.add(change.key)
        assert len(keys) == 600
        last = [await written.put("k0", f"{number}".encode()) for number in range(50)][-1]
        while seen[-1] != last:
            change = await _next(watch)
            assert isinstance(change, Entry)
            seen.append(change.revision)
    assert seen == sorted(set(seen))


async def test_it_goes_on_after_the_server_was_killed(own_nats: EmbeddedNats) -> None:
    spec = _bucket()
    follower = own_nats.settings.model_copy(update={"makes_streams": False})
    async with (
        await Bus.connect(own_nats.settings, name="writer") as writer,
        await Bus.connect(follower, name="reader") as reader,
    ):
        written = await KeyValue.declare(writer, spec, deadline_s=60.0)
        await written.put("a", b"1")
        async with KvWatch(KeyValue(reader, spec)) as watch:
            assert isinstance(await _next(watch), Entry)
            assert await _next(watch) == SnapshotComplete()
            own_nats.kill()
            await asyncio.to_thread(own_nats.stop)
            await asyncio.to_thread(own_nats.start)
            revision = await written.put("a", b"2", deadline_s=60.0)
            assert await watch.next(deadline_s=60.0) == Entry("a", b"2", revision)


async def test_a_bucket_with_a_history_is_not_followed_so(reader: Bus) -> None:
    with pytest.raises(ValueError, match="history"):
        KvWatch(KeyValue(reader, _bucket(history=10)))
