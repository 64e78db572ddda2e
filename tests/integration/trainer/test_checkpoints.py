"""Checkpoints in a real store and in a folder: files before the pointer, one writer, nothing needed ever deleted."""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.trainer.committed import claimed, index_of, put, write
from tests.support.trainer.storages import StorageSpec, seal_of
from trimtab.fabric.objects.errors import ObjectStoreError, StoreUnavailable
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.trainer.checkpoints.index import CheckpointDamaged, CheckpointFile, CheckpointIndex, CheckpointPointer
from trimtab.trainer.checkpoints.parts import AT_ONCE, FileOnDisk
from trimtab.trainer.checkpoints.staging import StagedFile, Staging
from trimtab.trainer.checkpoints.storage import CheckpointStorage, PointerMoved, SeenPointer
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.weights.store.latest import SupersededTrainer


@pytest.fixture(params=["objects", "folder"])
def storage(request: pytest.FixtureRequest, store_settings: ObjectStoreSettings, tmp_path: Path) -> CheckpointStorage:
    return StorageSpec(tmp_path / "storage", store_settings if request.param == "objects" else None).open()


async def newest_step(storage: CheckpointStorage) -> int | None:
    newest = await CheckpointStore(storage, seal_of(), keep=3).newest()
    return None if newest is None else newest.step


async def steps_there(storage: CheckpointStorage) -> list[int]:
    return sorted({int(name.split("/")[1].split("-")[0]) for name in await storage.names()})


async def test_nothing_then_the_newest_with_all_that_it_says(storage: CheckpointStorage, tmp_path: Path) -> None:
    checkpoints = await claimed(storage, 1)
    assert await checkpoints.newest() is None
    await write(checkpoints, 5)
    index = await write(checkpoints, 10)
    other = CheckpointStore(storage, seal_of(), keep=3)
    assert await other.newest() == index
    await other.fetch(index.files[0], tmp_path / "fetched")
    body = (tmp_path / "fetched").read_bytes()
    assert (hashlib.sha256(body).hexdigest(),) == index.files[0].digests
    assert await other.headers(index.files) == [body[: index.files[0].header_size]]


async def staged_in_parts(checkpoints: CheckpointStore) -> tuple[dict[str, torch.Tensor], CheckpointFile]:
    """Three parts and a bit: a part of S3 has at least five megabytes."""
    torch.manual_seed(3)
    state = {f"x{number}": torch.rand(1_000_000) for number in range(4)}
    staged = Staging(part_bytes=5 << 20).copy(state)
    return state, await checkpoints.put(staged, step=5)


async def test_a_file_of_many_parts_is_read_as_it_was_written(storage: CheckpointStorage, tmp_path: Path) -> None:
    checkpoints = await claimed(storage, 1)
    state, file = await staged_in_parts(checkpoints)
    assert len(file.digests) == 4
    await checkpoints.fetch(file, tmp_path / "fetched")
    read = load_file(tmp_path / "fetched")
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
    taken: dict[int, bytes] = {}
    await checkpoints.read([(file, 3), (file, 1)], lambda _, number, body: taken.update({number: bytes(body)}))
    whole = (tmp_path / "fetched").read_bytes()
    assert taken == {1: whole[5 << 20 : 10 << 20], 3: whole[15 << 20 :]}


class Body(bytearray):
    """Can be referred to weakly, so that one sees when it is let go."""


@pytest.mark.slow
async def test_memory_besides_the_copy_is_that_of_a_few_parts(storage: CheckpointStorage) -> None:
    """Of any number of them. Parts are copied here, as those of pinned memory are."""
    alive: set[int] = set()
    most: list[int] = []

    class CopiedParts(StagedFile):
        def part(self, number: int) -> bytearray:
            body = Body(super().part(number))
            alive.add(id(body))
            most.append(len(alive))
            weakref.finalize(body, alive.discard, id(body))
            return body

    checkpoints = await claimed(storage, 1)
    staged = Staging(part_bytes=5 << 20).copy({"x": torch.zeros(15 << 20)})
    counted = CopiedParts(header=staged.header, size=staged.size, part_bytes=staged.part_bytes, blocks=staged.blocks)
    file = await checkpoints.put(counted, step=5)
    assert len(file.digests) == 13
    assert 1 < max(most) <= AT_ONCE
    buffers: set[int] = set()
    wanted = [(file, number) for number in range(13)]
    await checkpoints.read(wanted, lambda _, __, body: buffers.add(id(body.obj)))
    assert 1 < len(buffers) <= AT_ONCE


async def test_damage_in_one_part_is_noticed_by_whoever_reads_that_part(storage: CheckpointStorage) -> None:
    checkpoints = await claimed(storage, 1)
    _, file = await staged_in_parts(checkpoints)
    body = bytearray(await storage.get(file.name, max_bytes=file.size))
    body[12 << 20] ^= 1
    await storage.delete(file.name)
    await storage.put(file.name, bytes(body))
    for number in (0, 1, 3):
        await checkpoints.read([(file, number)], lambda *_: None)
    with pytest.raises(CheckpointDamaged, match=r"part 2 of .*rank-00000.safetensors has the SHA-256"):
        await checkpoints.read([(file, 2)], lambda *_: None)


async def test_a_file_alone_is_not_a_checkpoint(storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the index, and one before the pointer."""
    checkpoints = await claimed(storage, 1)
    await write(checkpoints, 5)
    file = await put(checkpoints, 10)
    assert await newest_step(storage) == 5

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone in the middle of it")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "swap_pointer", fails)
        with pytest.raises(StoreUnavailable):
            await checkpoints.commit(index_of(checkpoints, 10, file))
    assert await newest_step(storage) == 5
    assert await steps_there(storage) == [5, 10]
    # The next attempt gets no further than the step after, and what the first left goes all the same.
    await write(await claimed(storage, 2), 6)
    assert await steps_there(storage) == [5, 6]


async def test_the_pointer_always_names_files_that_are_there(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = await claimed(storage, 1)
    swap = storage.swap_pointer
    counts: list[int] = []

    async def checked(body: bytes, *, seen: SeenPointer | None) -> None:
        names = set(await storage.names())
        for reference in seal_of().opened(body, CheckpointPointer, where="pointer").checkpoints:
            assert reference.name in names
            sealed = await storage.get(reference.name, max_bytes=10_000)
            index = seal_of().opened(sealed, CheckpointIndex, where="index")
            assert {file.name for file in index.files} <= names
        counts.append(len(names))
        await swap(body, seen=seen)

    monkeypatch.setattr(storage, "swap_pointer", checked)
    await write(checkpoints, 5)
    await write(checkpoints, 6)
    assert counts == [2, 4]


@pytest.mark.parametrize("what", ["file", "index"])
@pytest.mark.parametrize("how", ["damaged", "longer", "missing"])
async def test_what_is_damaged_or_missing_is_named_with_the_way_out(
    storage: CheckpointStorage, tmp_path: Path, what: str, how: str
) -> None:
    checkpoints = await claimed(storage, 1)
    await write(checkpoints, 4)
    index = await write(checkpoints, 5)
    (name,) = [
        name for name in await storage.names() if "000000000005-" in name and ("index-" in name) == (what == "index")
    ]
    body = await storage.get(name, max_bytes=10_000)
    await storage.delete(name)
    if how != "missing":
        await storage.put(name, body[:-1] + b"?" if how == "damaged" else body + b"?")
    attempt = checkpoints.newest() if what == "index" else checkpoints.fetch(index.files[0], tmp_path / "fetched")
    with pytest.raises(CheckpointDamaged, match="start a new job") as refused:
        await attempt
    assert name in str(refused.value)


async def test_of_two_that_replace_the_same_pointer_one_wins(storage: CheckpointStorage) -> None:
    assert await storage.read_pointer() is None
    await storage.swap_pointer(b"first", seen=None)
    with pytest.raises(PointerMoved):
        await storage.swap_pointer(b"second", seen=None)
    seen = await storage.read_pointer()
    assert seen is not None
    await storage.swap_pointer(b"third", seen=seen)
    with pytest.raises(PointerMoved):
        await storage.swap_pointer(b"fourth", seen=seen)
    present = await storage.read_pointer()
    assert present is not None
    assert present.body == b"third"


async def test_a_trainer_with_a_successor_cannot_move_the_pointer(storage: CheckpointStorage) -> None:
    older = await claimed(storage, 1)
    await write(older, 5)
    put_before = index_of(older, 10, await put(older, 10))
    newer = await claimed(storage, 2)
    with pytest.raises(SupersededTrainer):
        await older.commit(put_before)
    assert await newest_step(storage) == 5
    await write(newer, 6)
    with pytest.raises(SupersededTrainer):
        await older.commit(put_before)
    with pytest.raises(SupersededTrainer):
        await write(older, 11)
    with pytest.raises(SupersededTrainer):
        await older.claim(1)
    assert await newest_step(storage) == 6


async def test_a_trainer_with_a_successor_cannot_make_the_first_checkpoint(storage: CheckpointStorage) -> None:
    """Its steps would be acknowledged, and the successor would begin before them."""
    older = await claimed(storage, 1)
    put_before = index_of(older, 5, await put(older, 5))
    await claimed(storage, 2)
    with pytest.raises(SupersededTrainer):
        await older.commit(put_before)
    assert await newest_step(storage) is None


async def test_the_files_that_a_successor_is_writing_are_left_alone(storage: CheckpointStorage, tmp_path: Path) -> None:
    older = await claimed(storage, 1, keep=1)
    index = index_of(older, 5, await put(older, 5))
    newer = CheckpointStore(storage, seal_of(), keep=1)
    await newer.follow(2, rank=0)
    file = await put(newer, 5)
    await older.commit(index)
    await newer.claim(2)
    await newer.commit(index_of(newer, 5, file))
    await newer.fetch(file, tmp_path / "fetched")
    assert await newest_step(storage) == 5


async def test_only_so_many_stay_over_restarts_too(storage: CheckpointStorage) -> None:
    first = await claimed(storage, 1, keep=2)
    for step in (1, 2, 3):
        await write(first, step)
    assert await steps_there(storage) == [2, 3]
    await write(await claimed(storage, 2, keep=2), 4)
    assert await steps_there(storage) == [3, 4]
    await write(await claimed(storage, 3, keep=1), 5)
    assert await steps_there(storage) == [5]
    assert await newest_step(storage) == 5


async def test_what_cannot_be_deleted_does_not_fail_the_checkpoint(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = await claimed(storage, 1, keep=1)
    await write(checkpoints, 1)

    async def fails(*_: object, **__: object) -> None:
        raise ObjectStoreError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "delete", fails)
        await write(checkpoints, 2)
    assert await steps_there(storage) == [1, 2]
    await write(checkpoints, 3)
    assert await steps_there(storage) == [3]


async def test_a_commit_can_be_repeated(storage: CheckpointStorage) -> None:
    """As after an outage, when nobody knows how far it came."""
    checkpoints = await claimed(storage, 1, keep=2)
    await write(checkpoints, 4)
    index = index_of(checkpoints, 5, await put(checkpoints, 5))
    await checkpoints.commit(index)
    await checkpoints.commit(index)
    assert await steps_there(storage) == [4, 5]


async def test_files_that_were_never_finished_go_with_the_next_trainer(
    folder: CheckpointStorage, tmp_path: Path
) -> None:
    unfinished = Path(folder.where("unfinished"))
    counts: list[int] = []

    class OvertakenFile(FileOnDisk):
        """The successor comes while it is being written."""

        def part(self, number: int) -> bytearray:
            counts.append(len(list(unfinished.iterdir())))
            asyncio.run(CheckpointStore(folder, seal_of(), keep=3).follow(2, rank=1))
            counts.append(len(list(unfinished.iterdir())))
            return super().part(number)

    save_file({"x": torch.zeros(4)}, tmp_path / "x")
    for epoch, left in ((1, 0), (2, 1)):
        checkpoints = await claimed(folder, epoch)
        if epoch == 1:
            with pytest.raises(SupersededTrainer, match="has tidied up"):
                await checkpoints.put(OvertakenFile(tmp_path / "x"), step=1)
        else:
            await checkpoints.put(OvertakenFile(tmp_path / "x"), step=1)
        assert counts[-2:] == [1, left]
    assert [name.split("/")[1] for name in await folder.names()] == ["000000000001-000000000002"]
    assert list(unfinished.iterdir()) == []


async def test_uploads_that_were_never_finished_are_aborted(
    store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    storage = StorageSpec(tmp_path, store_settings).open()
    store = storage._store  # type: ignore[attr-defined]
    begun = {
        epoch: store.s3.create_multipart_upload(
            Bucket=store.bucket,
            Key=store.full_key(f"checkpoints/solver/checkpoints/{5:012d}-{epoch:012d}/rank-00000-x.safetensors"),
        )["UploadId"]
        for epoch in (1, 2)
    }
    await storage.clear_unfinished(before_epoch=2)
    left = store.s3.list_multipart_uploads(Bucket=store.bucket, Prefix=store.full_key("checkpoints/solver"))
    assert [upload["UploadId"] for upload in left.get("Uploads", [])] == [begun[2]]


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointStorage:
    return StorageSpec(tmp_path / "storage").open()


async def test_a_trainer_that_slept_through_many_moves_gets_no_free_number(folder: CheckpointStorage) -> None:
    await folder.swap_pointer(b"0", seen=None)
    slept = await folder.read_pointer()
    for number in range(150):
        await folder.swap_pointer(str(number).encode(), seen=await folder.read_pointer())
    with pytest.raises(PointerMoved):
        await folder.swap_pointer(b"from the past", seen=slept)
    present = await folder.read_pointer()
    assert present is not None
    assert present.body == b"149"
    assert len(list(Path(folder.where("latest")).iterdir())) <= 101
