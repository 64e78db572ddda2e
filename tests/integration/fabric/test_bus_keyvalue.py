"""Key-value buckets: revisions, races, expiry and watching."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.support.polling import eventually
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusConflict, BusNotFound, BusTimeout, InvalidName
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, Removed, SnapshotComplete, keys
from trimtab.fabric.bus.streams import delete_stream
from trimtab.fabric.bus.topology import BucketSpec
from trimtab.fabric.settings import NatsSettings

D = 60.0


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


@pytest.fixture
async def bucket(bus: Bus) -> AsyncIterator[KeyValue]:
    bucket = await KeyValue.declare(bus, BucketSpec(name=f"b{uuid.uuid4().hex}"), deadline_s=D)
    yield bucket
    await delete_stream(bus, bucket.spec.stream, deadline_s=D)


async def test_put_get_delete(bucket: KeyValue) -> None:
    with pytest.raises(BusNotFound, match="a"):
        await bucket.get("a")
    revision = await bucket.put("a", b"1")
    assert await bucket.get("a") == Entry(key="a", value=b"1", revision=revision)
    await bucket.put("empty", b"")
    assert (await bucket.get("empty")).value == b""
    await bucket.delete("a")
    with pytest.raises(BusNotFound):
        await bucket.get("a")
    assert await keys(bucket, deadline_s=D) == ["empty"]
    with pytest.raises(InvalidName):
        await bucket.put("no blanks", b"")


async def test_create_and_update_name_the_present_revision(bucket: KeyValue) -> None:
    first = await bucket.create("a", b"1")
    with pytest.raises(BusConflict) as conflict:
        await bucket.create("a", b"2")
    assert conflict.value.revision == first
    second = await bucket.update("a", b"2", revision=first)
    with pytest.raises(BusConflict) as conflict:
        await bucket.update("a", b"3", revision=first)
    assert conflict.value.revision == second
    with pytest.raises(BusConflict):
        await bucket.delete("a", revision=first)
    await bucket.delete("a", revision=second)
    assert await bucket.create("a", b"again") > second
    with pytest.raises(BusConflict) as conflict:
        await bucket.update("never", b"", revision=7)
    assert conflict.value.revision == 0


async def test_of_eight_writers_one_wins_each_round(bucket: KeyValue) -> None:
    async def swap(writer: int, revision: int) -> int | None:
        try:
            return await bucket.update("k", str(writer).encode(), revision=revision)
        except BusConflict:
            return None

    revision = await bucket.create("k", b"")
    for _ in range(20):
        wins = [win for win in await asyncio.gather(*(swap(n, revision) for n in range(8))) if win is not None]
        assert len(wins) == 1
        (revision,) = wins
    assert (await bucket.get("k")).revision == revision


async def test_a_swap_whose_answer_was_lost_is_recognised_as_our_own(bucket: KeyValue) -> None:
    """The fault cannot be timed on a real server, so the answer of the first attempt is dropped on our side."""
    revision = await bucket.create("k", b"1")
    ask = bucket.bus.ask
    dropped: list[object] = []

    async def ask_and_lose_the_first(subject: str, payload: bytes = b"", **options: object) -> object:
        answer = await ask(subject, payload, **options)  # type: ignore[arg-type]
        if not dropped and payload == b"2":
            dropped.append(answer)
            raise BusTimeout("lost")
        return answer

    bucket.bus.ask = ask_and_lose_the_first  # type: ignore[method-assign,assignment]
    second = await bucket.update("k", b"2", revision=revision)
    assert dropped
    assert (await bucket.get("k")) == Entry(key="k", value=b"2", revision=second)


async def test_watch_gives_the_state_and_then_the_changes(bucket: KeyValue) -> None:
    await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    await bucket.put("a", b"2")
    async with KvWatch(bucket) as watch:
        assert {(await watch.next(deadline_s=D)).key for _ in range(2)} == {"a", "b"}  # type: ignore[union-attr]
        assert await watch.next(deadline_s=D) == SnapshotComplete()
        with pytest.raises(BusTimeout):
            await watch.next(deadline_s=0.1)
        revision = await bucket.put("c.d", b"3")
        assert await watch.next(deadline_s=D) == Entry("c.d", b"3", revision)
        await bucket.delete("a")
        change = await watch.next(deadline_s=D)
        assert isinstance(change, Removed)
        assert change.key == "a"


async def test_an_empty_bucket_is_complete_at_once(bucket: KeyValue) -> None:
    async with KvWatch(bucket) as watch:
        async for change in watch:
            assert change == SnapshotComplete()
            break
    assert await keys(bucket, deadline_s=D) == []


async def test_keys_of_a_ttl_bucket_expire_and_can_be_made_again(bus: Bus) -> None:
    spec = BucketSpec(name=f"ttl{uuid.uuid4().hex}", ttl_s=1.0)
    bucket = await KeyValue.declare(bus, spec, deadline_s=D)
    await KeyValue.declare(bus, spec, deadline_s=D)
    await bucket.create("pod-1", b"alive")

    async def is_gone() -> bool:
        try:
            await bucket.get("pod-1")
        except BusNotFound:
            return True
        return False

    await eventually(is_gone, timeout_s=D)
    await bucket.create("pod-1", b"alive again")
    await delete_stream(bus, spec.stream, deadline_s=D)
