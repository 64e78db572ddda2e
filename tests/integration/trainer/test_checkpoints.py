"""Checkpoints in a real store: the file before the pointer, one writer, nothing needed ever deleted."""

from __future__ import annotations

import msgspec
import pytest

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError, StoreUnavailable
from trimtab.trainer import checkpoint
from trimtab.trainer.checkpoint import CheckpointDamaged, CheckpointPointer, CheckpointStore
from trimtab.weights.store.latest import SupersededTrainer

POINTER = "checkpoints/solver/latest.json"


async def claimed(store: ObjectStore, epoch: int, *, keep: int = 3) -> CheckpointStore:
    checkpoints = CheckpointStore(store, "solver", keep=keep)
    await checkpoints.claim(epoch)
    return checkpoints


async def files(store: ObjectStore) -> list[str]:
    return [info.key.rsplit("/", 1)[1].split("-")[0] async for info in store.scan("checkpoints/solver/files/")]


async def test_nothing_then_the_newest(store: ObjectStore) -> None:
    checkpoints = await claimed(store, 1)
    assert await checkpoints.newest() is None
    await checkpoints.write(5, b"five")
    await checkpoints.write(10, b"ten")
    newest = await CheckpointStore(store, "solver", keep=3).newest()
    assert newest is not None
    assert (newest[0].step, newest[1]) == (10, b"ten")


async def test_without_the_file_the_pointer_does_not_move(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = await claimed(store, 1)
    await checkpoints.write(5, b"five")

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone in the middle of it")

    monkeypatch.setattr(checkpoint, "upload", fails)
    with pytest.raises(StoreUnavailable):
        await checkpoints.write(10, b"ten")
    newest = await checkpoints.newest()
    assert newest is not None
    assert newest[0].step == 5


async def test_the_pointer_always_names_a_file_that_is_there(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = await claimed(store, 1)
    move = checkpoints._move_pointer
    seen: list[int] = []

    async def checked(pointer: CheckpointPointer) -> None:
        assert (await store.head(pointer.key)).size == pointer.size
        seen.append(pointer.step)
        await move(pointer)

    monkeypatch.setattr(checkpoints, "_move_pointer", checked)
    await checkpoints.write(5, b"five")
    assert seen == [5]


async def test_a_damaged_file_is_refused(store: ObjectStore) -> None:
    checkpoints = await claimed(store, 1)
    await checkpoints.write(5, b"five")
    pointer = msgspec.json.decode((await store.get(POINTER, max_bytes=10_000)).body, type=CheckpointPointer)
    await store.put(pointer.key, b"FIVE")
    with pytest.raises(CheckpointDamaged, match="digest"):
        await checkpoints.newest()


async def test_a_trainer_with_a_successor_cannot_move_the_pointer(store: ObjectStore) -> None:
    older = await claimed(store, 1)
    await older.write(5, b"five")
    newer = await claimed(store, 2)
    with pytest.raises(SupersededTrainer):
        await older.write(10, b"ten of the older")
    newest = await newer.newest()
    assert newest is not None
    assert (newest[0].step, newest[0].epoch) == (5, 2)
    await newer.write(6, b"six")
    with pytest.raises(SupersededTrainer):
        await older.write(10, b"ten of the older")
    assert ((await newer.newest()) or (None, b""))[1] == b"six"


async def test_only_so_many_stay_over_restarts_too(store: ObjectStore) -> None:
    first = await claimed(store, 1, keep=2)
    for step in (1, 2, 3):
        await first.write(step, str(step).encode())
    second = await claimed(store, 2, keep=2)
    await second.write(4, b"4")
    assert await files(store) == ["000000000003", "000000000004"]
    assert ((await second.newest()) or (None, b""))[1] == b"4"


async def test_what_cannot_be_deleted_does_not_fail_the_checkpoint(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = await claimed(store, 1, keep=1)
    await checkpoints.write(1, b"1")

    async def fails(*_: object, **__: object) -> None:
        raise ObjectStoreError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", fails)
        await checkpoints.write(2, b"2")
    assert len(await files(store)) == 2
    await checkpoints.write(3, b"3")
    assert await files(store) == ["000000000003"]
