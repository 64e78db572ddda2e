"""What a writer to the storage without the job's key can do to checkpoints: nothing that a trainer resumes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.support.trainer.committed import claimed, index_of, put, write
from tests.support.trainer.samples import policy
from tests.support.trainer.storages import StorageSpec, same, seal_of, state_of
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.background import Background
from trimtab.trainer.checkpoints.index import CheckpointDamaged, CheckpointPointer, sha256_of
from trimtab.trainer.checkpoints.resume import resume
from trimtab.trainer.checkpoints.seal import CheckpointRefused, CheckpointSeal
from trimtab.trainer.checkpoints.storage import CheckpointStorage
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner

FORGER = Signer.generate()


@pytest.fixture(params=["objects", "folder"])
def storage(request: pytest.FixtureRequest, store_settings: ObjectStoreSettings, tmp_path: Path) -> CheckpointStorage:
    return StorageSpec(tmp_path / "storage", store_settings if request.param == "objects" else None).open()


async def forged_by(storage: CheckpointStorage, seal: CheckpointSeal) -> None:
    """A whole checkpoint of other weights, consistent in itself, over the genuine one."""
    seen = await storage.read_pointer()
    forger = CheckpointStore(storage, seal, keep=3)
    await forger.follow(1, rank=0)
    index = index_of(forger, 5, await put(forger, 5, values=7))
    sealed = seal.seal(index)
    name = f"checkpoints/000000000005-000000000001/index-{sha256_of(sealed)}.json"
    await storage.put(name, sealed)
    pointer = msgspec.convert(
        {
            "epoch": 1,
            "moves": 9,
            "writer": "w",
            "checkpoints": [
                {"step": 5, "epoch": 1, "name": name, "size": len(sealed), "sha256": sha256_of(sealed)},
            ],
        },
        CheckpointPointer,
    )
    await storage.swap_pointer(seal.seal(pointer), seen=seen)


async def refusal(storage: CheckpointStorage) -> str:
    """Of both that a trainer that starts does: claim and read."""
    with pytest.raises(CheckpointRefused) as refused:
        await CheckpointStore(storage, seal_of(), keep=3).newest()
    with pytest.raises(CheckpointDamaged):
        await claimed(storage, 2)
    return str(refused.value)


async def test_the_genuine_one_is_taken_whatever_was_beside_it(storage: CheckpointStorage) -> None:
    index = await write(await claimed(storage, 1), 5)
    assert await CheckpointStore(storage, seal_of(), keep=3).newest() == index


async def test_one_that_another_key_signed_is_refused_and_says_where_and_what_to_do(storage: CheckpointStorage) -> None:
    await write(await claimed(storage, 1), 5)
    await forged_by(storage, seal_of(FORGER))
    reason = await refusal(storage)
    assert storage.pointer in reason
    assert "put its weights__signing_seed back" in reason


@pytest.mark.parametrize(
    ("seal", "named"),
    [(seal_of(job="n/other"), "job n/other"), (seal_of(policy="verifier"), "policy verifier")],
)
async def test_another_jobs_or_policys_with_the_same_key_is_refused(
    storage: CheckpointStorage, seal: CheckpointSeal, named: str
) -> None:
    await forged_by(storage, seal)
    reason = await refusal(storage)
    assert named in reason
    assert "trainer.checkpoint.uri" in reason


async def test_an_index_is_no_pointer_and_weights_are_neither(storage: CheckpointStorage) -> None:
    """All are signed by one key."""
    checkpoints = await claimed(storage, 1)
    index = await write(checkpoints, 5)
    await storage.swap_pointer(seal_of().seal(index), seen=await storage.read_pointer())
    assert "not signed by any" in await refusal(storage)


@pytest.mark.parametrize(
    "body",
    [
        b'{"format":1,"epoch":1,"writer":"w","checkpoints":[]}',
        b'{"format":2,"epoch":1,"moves":1,"writer":"w","checkpoints":[]}',
        b'{"signature":"","signed":{}}',
        b'{"signature":"?","signed":{}}',
        b'{"signature":"","signed":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
        b"",
        b"\x80\x04\x95",
    ],
    ids=["version-1", "bare", "empty", "no-base64", "deep", "no-text", "nothing", "pickle"],
)
async def test_an_unsigned_pointer_is_refused(storage: CheckpointStorage, body: bytes) -> None:
    await storage.swap_pointer(body, seen=None)
    reason = await refusal(storage)
    assert storage.pointer in reason
    assert "signed" in reason
    assert len(reason) < 1000


async def test_every_altered_bit_of_a_pointer_is_noticed(storage: CheckpointStorage) -> None:
    await write(await claimed(storage, 1), 5)
    seen = await storage.read_pointer()
    assert seen is not None
    for position in range(0, len(seen.body), 7):
        altered = bytearray(seen.body)
        altered[position] ^= 1
        with pytest.raises(CheckpointDamaged):
            seal_of().opened(bytes(altered), CheckpointPointer, where="x")


async def test_a_genuine_index_of_another_step_in_its_place_is_refused(storage: CheckpointStorage) -> None:
    """Even with a pointer whose digest and size fit: the step is in what is signed of each."""
    checkpoints = await claimed(storage, 1)
    await write(checkpoints, 4)
    await write(checkpoints, 5)
    seen = await storage.read_pointer()
    assert seen is not None
    pointer = seal_of().opened(seen.body, CheckpointPointer, where="x")
    newest, older = pointer.checkpoints
    swapped = msgspec.structs.replace(
        pointer,
        checkpoints=(
            msgspec.structs.replace(newest, name=older.name, size=older.size, sha256=older.sha256),
            older,
        ),
    )
    await storage.swap_pointer(seal_of().seal(swapped), seen=seen)
    with pytest.raises(CheckpointRefused, match=re.escape("it is of step 4 of epoch 1, its pointer names step 5")):
        await CheckpointStore(storage, seal_of(), keep=3).newest()


async def test_an_older_pointer_that_is_put_back_under_a_trainer_is_refused(storage: CheckpointStorage) -> None:
    checkpoints = await claimed(storage, 1)
    await write(checkpoints, 4)
    older = await storage.read_pointer()
    await write(checkpoints, 5)
    assert older is not None
    await storage.swap_pointer(older.body, seen=await storage.read_pointer())
    with pytest.raises(CheckpointRefused, match="an older one was put back"):
        await write(checkpoints, 6)


async def test_during_a_rotation_both_keys_are_believed(storage: CheckpointStorage) -> None:
    old, new = Signer.generate(), Signer.generate()
    index = await write(await claimed(storage, 1, seal=seal_of(old)), 5)
    both = CheckpointSeal(job="n/j", policy="solver", signer=new, verifier=Verifier([new.public_text, old.public_text]))
    rotated = await claimed(storage, 2, seal=both)
    assert await rotated.newest() == index
    with pytest.raises(CheckpointRefused, match="not signed by any of the 1 trusted keys"):
        await CheckpointStore(storage, seal_of(old), keep=3).newest()


def test_a_trainer_does_not_resume_what_a_rollout_pods_key_has_rewritten(
    model: Path, storage: CheckpointStorage
) -> None:
    """The storage's own credentials suffice to write everything, and are not enough."""
    learner = Learner(policy(), model_path=model)
    untouched = state_of(learner)
    with Background() as background:

        async def forge() -> None:
            await write(await claimed(storage, 1), 5)
            await forged_by(storage, seal_of(FORGER))

        background.run(forge())
        checkpoints = CheckpointStore(storage, seal_of(), keep=3)
        with pytest.raises(CheckpointRefused):
            resume(learner, checkpoints, background, rank=0)
    assert learner.step == 0
    assert same(state_of(learner), untouched)


async def test_what_is_verified_is_what_is_read(store_settings: ObjectStoreSettings, tmp_path: Path) -> None:
    """A volume shows other bytes the second time: what was fetched is a copy."""
    storage = StorageSpec(tmp_path / "storage").open()
    checkpoints = await claimed(storage, 1)
    index = await write(checkpoints, 5)
    await checkpoints.fetch(index.files[0], tmp_path / "fetched")
    genuine = (tmp_path / "fetched").read_bytes()
    Path(storage.where(index.files[0].name)).write_bytes(b"?" * len(genuine))
    assert (tmp_path / "fetched").read_bytes() == genuine
    with pytest.raises(CheckpointDamaged):
        await checkpoints.fetch(index.files[0], tmp_path / "again")
