"""What a checkpoint's JSON may say, and what may be deleted."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
import torch

from tests.support.trainer.storages import SIGNER, seal_of
from trimtab.trainer.checkpoints.index import (
    CheckpointDamaged,
    CheckpointFile,
    CheckpointIndex,
    CheckpointPointer,
)
from trimtab.trainer.checkpoints.state import random_states, restore_random_states, seed_generators
from trimtab.trainer.checkpoints.storage import folder_of, obsolete


def names(step: int, epoch: int) -> list[str]:
    folder = folder_of(step=step, epoch=epoch)
    return [f"{folder}/rank-00000-a.safetensors", f"{folder}/rank-00001-b.safetensors", f"{folder}/index-c.json"]


def deleted(there: list[tuple[int, int]], kept: list[tuple[int, int]], *, epoch: int) -> list[tuple[int, int]]:
    """Which checkpoints go, as (step, epoch), when the first of those kept was just committed."""
    doomed = obsolete(
        [name for one in there for name in names(*one)],
        kept=[names(*one)[-1] for one in kept],
        step=kept[0][0],
        epoch=epoch,
    )
    gone = [one for one in there if set(names(*one)) <= set(doomed)]
    assert len(doomed) == 3 * len(gone), "a checkpoint goes whole or not at all"
    return gone


@pytest.mark.parametrize(
    ("there", "kept", "epoch", "gone"),
    [
        pytest.param([(5, 1)], [(5, 1)], 1, [], id="the only one stays"),
        pytest.param([(5, 1), (10, 1), (15, 1)], [(15, 1), (10, 1)], 1, [(5, 1)], id="older than those kept"),
        pytest.param([(5, 1), (10, 2)], [(10, 2), (5, 1)], 2, [], id="of a trainer before, and kept"),
        pytest.param([(10, 1), (10, 2)], [(10, 2)], 2, [(10, 1)], id="the same step, never committed"),
        pytest.param([(12, 1), (10, 2)], [(10, 2)], 2, [(12, 1)], id="a later step, never committed"),
        pytest.param([(10, 1), (10, 2), (8, 2)], [(10, 1)], 1, [], id="a successor's are not touched"),
        pytest.param([(10, 3), (12, 3)], [(10, 3)], 3, [], id="our own that is being written"),
        pytest.param([(8, 3), (10, 3)], [(10, 3)], 3, [(8, 3)], id="our own that failed"),
    ],
)
def test_what_goes(
    there: list[tuple[int, int]], kept: list[tuple[int, int]], epoch: int, gone: list[tuple[int, int]]
) -> None:
    assert deleted(there, kept, epoch=epoch) == gone


def test_what_is_not_a_checkpoints_is_left_alone() -> None:
    strange = ["checkpoints/readme.txt", "checkpoints/5-1/x", "checkpoints/000000000001-x/y", "latest.json"]
    assert obsolete(strange, kept=[], step=10, epoch=10) == []


def file(rank: int) -> CheckpointFile:
    return CheckpointFile(
        rank=rank,
        name="a/b",
        size=10,
        part_bytes=8,
        digests=("0" * 64, "2" * 64),
        header_size=8,
        header_sha256="1" * 64,
    )


def index(**changes: Any) -> dict[str, Any]:
    whole = CheckpointIndex(
        epoch=1, step=5, lease_id="l", world_size=2, optimizer_steps={"x": 5}, files=(file(0), file(1))
    )
    return msgspec.to_builtins(whole) | changes  # type: ignore[no-any-return]


def sealed(content: dict[str, Any], *, magic: bytes = b"trimtab checkpoint index 2\n") -> bytes:
    """As a trainer of a later version, or one with a fault, would sign it."""
    signed = msgspec.json.encode({"job": "n/j", "policy": "solver", "content": content})
    signature = base64.b64encode(SIGNER.sign(magic + signed)).decode()
    return msgspec.json.encode({"signature": signature, "signed": msgspec.Raw(signed)})


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"format": 4}, id="of a later version"),
        pytest.param({"files": [msgspec.to_builtins(file(0))]}, id="a rank's file is not in it"),
        pytest.param({"files": [msgspec.to_builtins(file(1)), msgspec.to_builtins(file(0))]}, id="out of order"),
        pytest.param({"files": [msgspec.to_builtins(file(n)) | {"size": 17} for n in (0, 1)]}, id="a digest missing"),
        pytest.param({"step": -1}, id="negative"),
        pytest.param({"code": "print()"}, id="a field too many"),
        pytest.param({"optimizer_steps": {"x": 1.5}}, id="half a step"),
        pytest.param({"files": [msgspec.to_builtins(file(0)) | {"name": "../../etc/passwd"}] * 2}, id="climbs out"),
    ],
)
def test_an_index_that_is_not_one_is_refused_by_its_place(changes: dict[str, Any]) -> None:
    seal = seal_of()
    assert seal.opened(sealed(index()), CheckpointIndex, where="here").step == 5
    with pytest.raises(CheckpointDamaged, match="s3://b/index.json cannot be read"):
        seal.opened(sealed(index(**changes)), CheckpointIndex, where="s3://b/index.json")


@pytest.mark.parametrize("version", [2, 4])
def test_a_pointer_of_another_version_is_refused_with_the_way_out(version: int) -> None:
    """What an earlier version has signed is genuine, and says so."""
    pointer = msgspec.structs.asdict(CheckpointPointer(epoch=1, moves=1, writer="w")) | {"format": version}
    with pytest.raises(CheckpointDamaged, match=f"here cannot be read .*format {version}, .* finish the job"):
        seal_of().opened(sealed(pointer, magic=b"trimtab checkpoint pointer 2\n"), CheckpointPointer, where="here")


def test_random_numbers_go_on_where_they_were() -> None:
    seed_generators({"cpu"}, material="a")
    state = random_states()
    drawn = torch.rand(3)
    restore_random_states(state)
    assert torch.equal(torch.rand(3), drawn)


def test_random_numbers_from_the_same_material_are_the_same() -> None:
    draws = []
    for material in ("a", "a", "b"):
        seed_generators({"cpu"}, material=material)
        draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
