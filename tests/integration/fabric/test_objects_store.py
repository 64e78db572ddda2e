"""The object store client against a real SeaweedFS."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from trimtab.embedded.ports import free_ports
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.objects.client import DIGEST_METADATA, ObjectInfo, ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.download import DownloadShape, download, download_to_file
from trimtab.fabric.objects.errors import (
    ChecksumMismatch,
    InvalidKey,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
    StoreRefused,
    StoreTimeout,
    StoreUnauthorized,
    StoreUnavailable,
)
from trimtab.fabric.objects.selftest import prove_store
from trimtab.fabric.objects.upload import UploadShape, upload
from trimtab.fabric.settings import ObjectStoreSettings

MIB = 1024 * 1024
PARTS = UploadShape(part_bytes=5 * MIB, max_bytes_in_flight=10 * MIB)


@pytest.fixture
async def store(object_store_settings: ObjectStoreSettings) -> AsyncIterator[ObjectStore]:
    settings = object_store_settings.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})
    async with ObjectStore(settings) as opened:
        yield opened


async def keys_of(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key async for info in store.scan(prefix, page=3)]


async def test_put_get_head_scan_delete(store: ObjectStore) -> None:
    info = await store.put("a/b c+é.bin", b"hello")
    got = await store.get("a/b c+é.bin", max_bytes=5)
    assert (got.body, got.info) == (b"hello", info)
    assert await store.head("a/b c+é.bin") == info
    for number in range(7):
        await store.put(f"many/{number}", b"")
    assert await keys_of(store, "many/") == [f"many/{n}" for n in range(7)]
    assert "a/b c+é.bin" in await keys_of(store)
    await store.delete("a/b c+é.bin")
    await store.delete("a/b c+é.bin")
    with pytest.raises(ObjectNotFound, match="a/b c"):
        await store.get("a/b c+é.bin", max_bytes=5)
    with pytest.raises(ObjectNotFound):
        await store.head("a/b c+é.bin")


async def test_bounds_and_keys_are_checked(store: ObjectStore) -> None:
    await store.put("five", b"hello")
    with pytest.raises(ObjectTooLarge) as refused:
        await store.get("five", max_bytes=4)
    assert (refused.value.size, refused.value.limit) == (5, 4)
    with pytest.raises(InvalidKey):
        await store.put("../elsewhere", b"")


async def test_of_eight_creators_one_wins(store: ObjectStore) -> None:
    async def create(key: str, writer: int) -> ObjectInfo | None:
        try:
            return await put_if_absent(store, key, f"writer {writer}".encode())
        except PreconditionFailed:
            return None

    for race in range(3):
        outcomes = await asyncio.gather(*(create(f"race{race}", n) for n in range(8)))
        (winner,) = [n for n, outcome in enumerate(outcomes) if outcome is not None]
        assert (await store.get(f"race{race}", max_bytes=100)).body == f"writer {winner}".encode()


async def test_of_eight_swappers_one_wins_each_round(store: ObjectStore) -> None:
    async def swap(writer: int, turn: int, etag: str) -> ObjectInfo | None:
        try:
            return await compare_and_swap(store, "latest", f"{turn}.{writer}".encode(), etag=etag)
        except PreconditionFailed:
            return None

    info = await put_if_absent(store, "latest", b"start")
    for turn in range(3):
        wins = [w for w in await asyncio.gather(*(swap(n, turn, info.etag) for n in range(8))) if w is not None]
        assert len(wins) == 1
        (info,) = wins
    assert await store.head("latest") == info


async def test_swapping_what_is_gone_is_a_failed_precondition(store: ObjectStore) -> None:
    with pytest.raises(PreconditionFailed, match="never-was"):
        await compare_and_swap(store, "never-was", b"", etag='"abc"')


async def test_the_self_test_passes_here(store: ObjectStore) -> None:
    await prove_store(store)
    assert await keys_of(store) == []


@pytest.mark.parametrize("if_absent", [False, True])
async def test_multipart_from_bytes_and_file(store: ObjectStore, tmp_path: Path, *, if_absent: bool) -> None:
    body = os.urandom(12 * MIB + 7)
    source = tmp_path / "source"
    source.write_bytes(body)
    steps: list[tuple[int, int]] = []
    for key, content in (("bytes", body), ("file", source)):
        info = await upload(
            store,
            key,
            content,
            if_absent=if_absent,
            deadline_s=60.0,
            shape=PARTS,
            progress=lambda done, total: steps.append((done, total)),
        )
        assert info.etag.endswith('-3"')
        assert await store.head(key) == info
        _, got = await download(
            store, key, deadline_s=60.0, shape=DownloadShape(max_bytes=20 * MIB, range_bytes=3 * MIB)
        )
        assert got == body
    assert steps[-1] == (len(body), len(body))
    if if_absent:
        with pytest.raises(PreconditionFailed):
            await upload(store, "bytes", body, if_absent=True, deadline_s=60.0, shape=PARTS)
    await no_uploads_left(store)


async def no_uploads_left(store: ObjectStore) -> None:
    def left() -> list[str]:
        answer = store.s3.list_multipart_uploads(Bucket=store.bucket)
        return [item["Key"] for item in answer.get("Uploads", []) if item["Key"].startswith(store.full_key("x")[:-1])]

    end = time.monotonic() + 30.0
    while leftovers := await asyncio.to_thread(left):
        assert time.monotonic() < end, leftovers
        await asyncio.sleep(0.05)


async def test_a_cancelled_upload_is_aborted(store: ObjectStore) -> None:
    first_part = asyncio.Event()
    uploading = asyncio.create_task(
        upload(
            store, "gone", bytes(40 * MIB), deadline_s=60.0, shape=PARTS, progress=lambda done, total: first_part.set()
        )
    )
    await first_part.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    with pytest.raises(ObjectNotFound):
        await store.head("gone")
    await no_uploads_left(store)


async def test_small_and_empty_objects_transfer(store: ObjectStore, tmp_path: Path) -> None:
    for key, body in (("empty", b""), ("one", b"1")):
        await upload(store, key, body, deadline_s=60.0)
        _, got = await download(store, key, deadline_s=60.0, shape=DownloadShape(max_bytes=10))
        assert got == body
        await download_to_file(store, key, tmp_path / key, deadline_s=60.0, shape=DownloadShape(max_bytes=10))
        assert (tmp_path / key).read_bytes() == body
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "one"]


async def test_damage_is_detected(store: ObjectStore, tmp_path: Path) -> None:
    """The store is made to hold other bytes than the digest was computed from."""
    body = bytearray(os.urandom(2 * MIB))
    digest = (await store.put("good", bytes(body))).digest
    assert digest is not None
    body[MIB] ^= 1
    await asyncio.to_thread(
        store.s3.put_object,
        Bucket=store.bucket,
        Key=store.full_key("bad"),
        Body=bytes(body),
        Metadata={DIGEST_METADATA: digest},
    )
    shape = DownloadShape(max_bytes=10 * MIB, range_bytes=MIB)
    with pytest.raises(ChecksumMismatch, match="bad"):
        await store.get("bad", max_bytes=10 * MIB)
    with pytest.raises(ChecksumMismatch):
        await download(store, "bad", deadline_s=60.0, shape=shape)
    with pytest.raises(ChecksumMismatch):
        await download_to_file(store, "bad", tmp_path / "bad", deadline_s=60.0, shape=shape)
    assert list(tmp_path.iterdir()) == []


async def test_wrong_credentials_are_typed_and_not_repeated(object_store_settings: ObjectStoreSettings) -> None:
    secret = "wJalrXUtnFEMI-not-the-key"
    settings = object_store_settings.model_copy(update={"secret_access_key": SecretStr(secret)})
    async with ObjectStore(settings) as store:
        with pytest.raises(StoreUnauthorized) as refused:
            await store.get("any", max_bytes=1)
        assert secret not in f"{refused.value!r} {store!r}"


async def test_a_missing_bucket_is_not_a_missing_object(object_store_settings: ObjectStoreSettings) -> None:
    async with ObjectStore(object_store_settings.model_copy(update={"bucket": "no-such-bucket"})) as store:
        with pytest.raises(StoreRefused, match="no-such-bucket"):
            await store.get("any", max_bytes=1)


async def test_a_server_that_is_down_is_an_error_within_the_deadline(
    object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    settings = object_store_settings.model_copy(update={"endpoint_url": f"http://127.0.0.1:{port}"})
    shape = DownloadShape(max_bytes=1)
    async with ObjectStore(settings) as store:
        for attempt in (
            store.get("a", max_bytes=1, deadline_s=0.5),
            store.put("a", b"", deadline_s=0.5),
            put_if_absent(store, "a", b"", deadline_s=0.5),
            download_to_file(store, "a", tmp_path / "a", deadline_s=0.5, shape=shape),
            upload(store, "a", bytes(6 * MIB), deadline_s=0.5, shape=PARTS),
        ):
            started = time.monotonic()
            with pytest.raises((StoreUnavailable, StoreTimeout), match="s3://trimtab/a"):
                await attempt
            assert time.monotonic() - started < 60.0


async def test_calls_ride_out_a_restart(own_seaweed: EmbeddedSeaweed) -> None:
    async with ObjectStore(own_seaweed.settings) as store:
        info = await store.put("before", b"1")
        await asyncio.to_thread(own_seaweed.kill)
        waiting = asyncio.create_task(store.get("before", max_bytes=10, deadline_s=60.0))
        await asyncio.to_thread(own_seaweed.start)
        try:
            assert (await waiting).info == info
        except StoreUnavailable:  # attempts used up while it started: typed, and now it works
            assert (await store.get("before", max_bytes=10)).info == info
