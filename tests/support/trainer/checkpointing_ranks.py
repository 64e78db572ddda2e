"""Ranks that resume, train and save, each a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.support.trainer.samples import critic_policy, policy, rows, train_on
from tests.support.trainer.storages import StorageSpec, random_numbers, seal_of, state_of
from trimtab.fabric.objects.errors import StoreRefused
from trimtab.trainer.background import Background
from trimtab.trainer.checkpoints.index import CheckpointFile
from trimtab.trainer.checkpoints.origin import Origin
from trimtab.trainer.checkpoints.parts import CheckpointParts
from trimtab.trainer.checkpoints.reader import CheckpointReader
from trimtab.trainer.checkpoints.resume import begin_at, resume
from trimtab.trainer.checkpoints.saver import CheckpointFailed, CheckpointSaver
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner

SAMPLES = 12


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a group of ranks does: resume from the storage, make steps, save, and tell what it had."""

    model: Path
    storage: StorageSpec
    epoch: int
    world_size: int
    steps: int
    target: Path
    refused_rank: int | None = None
    """The storage takes no files of this one."""
    critic: bool = False
    origin: StorageSpec | None = None
    """Where it begins, optimiser and all, when it has nothing of its own."""

    def told(self, moment: str, rank: int) -> Path:
        return self.target / f"{moment}.{rank}.safetensors"

    def failure(self, rank: int) -> Path:
        return self.target / f"failure.{rank}"


async def _refused(source: CheckpointParts, *, step: int) -> CheckpointFile:
    raise StoreRefused("the bucket is gone")


async def _not_told(step: int, *, lease_id: str, weight_version: int) -> None:
    """There is no dataflow here."""


def run_rank(scene: Scene, rank: int) -> None:
    torch.manual_seed(rank + scene.epoch * 100)
    learner = Learner(critic_policy() if scene.critic else policy(), model_path=scene.model)
    checkpoints = CheckpointStore(scene.storage.open(), seal_of(), keep=2)
    with Background() as background:
        if rank == 0:
            background.run(checkpoints.claim(scene.epoch))
        else:
            background.run(checkpoints.follow(scene.epoch, rank=rank))
        if scene.world_size > 1:
            dist.barrier()
        if not resume(learner, checkpoints, background, rank=rank) and scene.origin is not None:
            begin_at(learner, _origin(scene.origin), background, rank=rank)
        _tell(scene, "resumed", rank, learner)
        for step in range(learner.step, learner.step + scene.steps):
            train_on(learner, rows(SAMPLES, seed=step)[rank :: scene.world_size], of=SAMPLES)
        if scene.steps:
            saver = CheckpointSaver(learner, checkpoints, background, rank=rank, acknowledge=_not_told)
            if rank == scene.refused_rank:
                checkpoints.put = _refused  # type: ignore[method-assign]
            saver.begin(lease_id="l")
            _tell(scene, "saved", rank, learner)
            try:
                saver.flush()
            except CheckpointFailed as failure:
                scene.failure(rank).write_text(str(failure))


def _origin(storage: StorageSpec) -> Origin:
    reader = CheckpointReader(storage.open(), seal_of())
    return Origin(reader=reader, where="the other job", policy="solver", step=None, optimizer=True)


def _tell(scene: Scene, moment: str, rank: int, learner: Learner) -> None:
    state = state_of(learner) | {"random": random_numbers(), "at": torch.tensor(learner.step)}
    save_file(state, scene.told(moment, rank))
