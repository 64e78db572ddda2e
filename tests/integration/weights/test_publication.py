"""Publishing and pulling weights through a real SeaweedFS and a real NATS."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ChecksumMismatch, ObjectNotFound, StoreTimeout
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.latest import Latest, LatestPointer, SupersededTrainer
from trimtab.weights.manifest import InvalidManifest
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import WeightPuller

D = 20.0


@dataclass(frozen=True)
class Place:
    """A store and a bucket that no other test uses."""

    store: ObjectStore
    pointers: KeyValue

    async def publisher(self, *, keep: int = 10) -> WeightPublisher:
        return await WeightPublisher.open(
            self.store, self.pointers, job="j", policy="p", keep_versions=keep, clock=lambda: 1.0, deadline_s=D
        )

    async def announced(self) -> WeightPointer:
        return decode((await self.pointers.get("p", deadline_s=D)).value, WeightPointer)

    async def latest(self) -> Latest:
        latest = await LatestPointer(self.store, "p").read(deadline_s=D)
        assert latest is not None
        return latest

    async def keys(self) -> set[str]:
        return {info.key async for info in self.store.scan("weights/p/epochs/")}


@pytest.fixture
async def place(nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings) -> AsyncIterator[Place]:
    name = f"w{uuid.uuid4().hex[:12]}"
    settings = object_store_settings.model_copy(update={"prefix": f"t/{name}"})
    async with await Bus.connect(nats_settings, name="test") as bus, ObjectStore(settings) as store:
        yield Place(store, await KeyValue.declare(bus, JobTopology("t", name).weights, deadline_s=D))


async def test_what_is_pulled_is_what_was_published(place: Place, tmp_path: Path) -> None:
    weights = os.urandom(3_000_000)
    publisher = await place.publisher()
    pointer = await publisher.publish(4, weights, deadline_s=D)
    assert await place.announced() == pointer
    assert (await place.latest()).version == 4
    folder = await WeightPuller(place.store, tmp_path / "pulled").pull(await place.announced(), deadline_s=D)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == weights


async def test_a_puller_starts_clean_and_keeps_only_what_is_in_use(place: Place, tmp_path: Path) -> None:
    (tmp_path / "pulled" / "1-3").mkdir(parents=True)
    (tmp_path / "pulled" / "1-3" / "model.safetensors").write_bytes(b"half")
    publisher = await place.publisher()
    puller = WeightPuller(place.store, tmp_path / "pulled")
    first = await puller.pull(await publisher.publish(3, b"three", deadline_s=D), deadline_s=D)
    second = await puller.pull(await publisher.publish(4, b"four", deadline_s=D), deadline_s=D)
    assert (first / "model.safetensors").read_bytes() == b"three"
    await puller.keep_only(second)
    assert list((tmp_path / "pulled").iterdir()) == [second]


async def test_a_corrupted_object_is_refused(place: Place, tmp_path: Path) -> None:
    pointer = await (await place.publisher()).publish(1, b"a" * 1000, deadline_s=D)
    (key,) = [key for key in await place.keys() if "/objects/" in key]
    await place.store.put(key, b"b" * 1000, deadline_s=D)
    puller = WeightPuller(place.store, tmp_path / "pulled")
    with pytest.raises(InvalidManifest, match="digest"):
        await puller.pull(pointer, deadline_s=D)
    assert not list((tmp_path / "pulled").rglob("model.safetensors"))
    # Bytes changed behind the store's back: its own digest no longer fits either.
    target = place.store.full_key(key)
    metadata = place.store.metadata(digest="crc32:00000000", write_id="x")
    await asyncio.to_thread(
        place.store.s3.put_object, Bucket=place.store.bucket, Key=target, Body=b"c" * 1000, Metadata=metadata
    )
    with pytest.raises((ChecksumMismatch, InvalidManifest)):
        await puller.pull(pointer, deadline_s=D)


@pytest.mark.parametrize("body", [b"{}", b"", b'{"format":1}'], ids=["empty object", "nothing", "part"])
async def test_a_corrupted_manifest_is_refused(place: Place, tmp_path: Path, body: bytes) -> None:
    pointer = await (await place.publisher()).publish(1, b"weights", deadline_s=D)
    await place.store.put(pointer.manifest_key, body, deadline_s=D)
    with pytest.raises(InvalidManifest):
        await WeightPuller(place.store, tmp_path / "pulled").pull(pointer, deadline_s=D)


async def test_the_older_of_two_trainers_can_publish_nothing_more(place: Place) -> None:
    older = await place.publisher()
    await older.publish(1, b"older 1", deadline_s=D)
    newer = await place.publisher()
    assert newer.epoch == older.epoch + 1
    with pytest.raises(SupersededTrainer):
        await older.publish(2, b"older 2", deadline_s=D)
    pointer = await newer.publish(1, b"newer 1", deadline_s=D)
    with pytest.raises(SupersededTrainer):
        await older.publish(3, b"older 3", deadline_s=D)
    assert await place.announced() == pointer
    assert await place.latest() == Latest(
        epoch=newer.epoch, version=1, manifest_key=pointer.manifest_key, manifest_digest=pointer.manifest_digest
    )


async def test_an_older_trainer_that_sleeps_between_store_and_bus_does_not_get_a_word_in(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer_done = await place.publisher(), asyncio.Event()
    announce = older._announce

    async def late(pointer: WeightPointer, *, deadline_s: float) -> None:
        newer = await place.publisher()
        await newer.publish(1, b"newer", deadline_s=D)
        newer_done.set()
        await announce(pointer, deadline_s=deadline_s)

    monkeypatch.setattr(older, "_announce", late)
    with pytest.raises(SupersededTrainer):
        await older.publish(9, b"older", deadline_s=D)
    assert newer_done.is_set()
    assert (await place.announced()).epoch == older.epoch + 1


async def test_many_trainers_that_start_at_once_get_an_epoch_each(place: Place) -> None:
    publishers = await asyncio.gather(*(place.publisher() for _ in range(5)))
    assert sorted(publisher.epoch for publisher in publishers) == [1, 2, 3, 4, 5]
    outcomes = await asyncio.gather(
        *(publisher.publish(1, str(publisher.epoch).encode(), deadline_s=D) for publisher in publishers),
        return_exceptions=True,
    )
    assert [type(o) for o in outcomes if isinstance(o, BaseException)] == [SupersededTrainer] * 4
    assert (await place.announced()).epoch == 5


async def test_a_swap_whose_answer_was_lost_is_recognised_when_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = LatestPointer(place.store, "p")
    epoch = await pointer.claim_epoch(deadline_s=D)
    latest = Latest(epoch=epoch, version=1, manifest_key="k", manifest_digest="d")
    write = pointer._write

    async def lost(latest: Latest, *, deadline_s: float) -> None:
        before = pointer._etag
        await write(latest, deadline_s=deadline_s)
        pointer._etag = before  # the store has it, and we know nothing of it
        raise StoreTimeout("no answer")

    monkeypatch.setattr(pointer, "_write", lost)
    with pytest.raises(StoreTimeout):
        await pointer.advance(latest, deadline_s=D)
    monkeypatch.setattr(pointer, "_write", write)
    await pointer.advance(latest, deadline_s=D)
    assert await place.latest() == latest
    await pointer.advance(Latest(epoch=epoch, version=2), deadline_s=D)


async def test_old_versions_go_and_what_is_in_use_stays(place: Place, tmp_path: Path) -> None:
    publisher = await place.publisher(keep=3)
    # Version 2 has the content of version 5: content that a kept version needs is not deleted with an old one.
    contents = [b"a", b"b", b"same", b"c", b"d", b"same", b"e"]
    pointers = [await publisher.publish(v, content, deadline_s=D) for v, content in enumerate(contents)]
    for number in (4, 5, 6):
        puller = WeightPuller(place.store, tmp_path / str(number))
        folder = await puller.pull(pointers[number], deadline_s=D)
        assert (folder / "model.safetensors").read_bytes() == contents[number]
    with pytest.raises(ObjectNotFound):
        await WeightPuller(place.store, tmp_path / "old").pull(pointers[3], deadline_s=D)
    assert len(await place.keys()) == 6


async def test_what_an_earlier_trainer_left_goes_once_the_new_one_has_brought_enough(place: Place) -> None:
    older = await place.publisher(keep=2)
    for version in range(3):
        last = await older.publish(version, f"old {version}".encode(), deadline_s=D)
    left = await place.keys()
    newer = await place.publisher(keep=2)
    await newer.publish(2, b"old 2", deadline_s=D)
    assert last.manifest_key in await place.keys()
    assert left <= await place.keys()
    await newer.publish(3, b"new 3", deadline_s=D)
    assert not left & await place.keys()
    assert len(await place.keys()) == 4
