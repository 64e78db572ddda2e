"""Small checkpoints, put and committed as a trainer does it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.trainer.storages import seal_of
from trimtab.trainer.checkpoints.index import CheckpointFile, CheckpointIndex
from trimtab.trainer.checkpoints.parts import FileOnDisk
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.storage import CheckpointStorage
from trimtab.trainer.checkpoints.store import CheckpointStore


async def claimed(
    storage: CheckpointStorage, epoch: int, *, keep: int = 3, seal: CheckpointSeal | None = None
) -> CheckpointStore:
    checkpoints = CheckpointStore(storage, seal or seal_of(), keep=keep)
    await checkpoints.claim(epoch)
    return checkpoints


async def put(checkpoints: CheckpointStore, step: int, *, values: int = 4) -> CheckpointFile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        save_file({"x": torch.full((values,), float(step))}, path)
        return await checkpoints.put(FileOnDisk(path), step=step)


def index_of(checkpoints: CheckpointStore, step: int, *files: CheckpointFile) -> CheckpointIndex:
    return CheckpointIndex(
        epoch=checkpoints.epoch,
        step=step,
        lease_id=f"lease-{step}",
        world_size=len(files),
        optimizer_steps={"x": step},
        files=files,
    )


async def write(checkpoints: CheckpointStore, step: int) -> CheckpointIndex:
    index = index_of(checkpoints, step, await put(checkpoints, step))
    await checkpoints.commit(index)
    return index
