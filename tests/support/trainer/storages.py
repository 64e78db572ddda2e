"""Places for checkpoints, described so that another process can open the same, and states to compare bit for bit."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import torch

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.folder_storage import FolderStorage
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.state import random_states
from trimtab.trainer.checkpoints.storage import CheckpointStorage
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.spread import whole

PREFIX = "checkpoints/solver"
SIGNER = Signer(base64.b64encode(b"the key of one job in the tests.").decode())
"""The same in every process."""


def seal_of(signer: Signer = SIGNER, *, job: str = "n/j", policy: str = "solver") -> CheckpointSeal:
    return CheckpointSeal(job=job, policy=policy, signer=signer, verifier=Verifier([signer.public_text]))


@dataclass(frozen=True)
class StorageSpec:
    """An object store where there are settings, else the folder."""

    folder: Path
    objects: ObjectStoreSettings | None = None

    def open(self) -> CheckpointStorage:
        if self.objects is not None:
            return ObjectStorage(ObjectStore(self.objects), PREFIX)
        storage = FolderStorage(self.folder)
        storage.lay_out()
        return storage


def state_of(learner: Learner) -> dict[str, torch.Tensor]:
    """Whole tensors of model and optimiser, by name. All ranks call it together."""
    state = {name: whole(tensor.detach()).clone() for name, tensor in learner.model.named_parameters()}
    for name, parameter in learner.model.named_parameters():
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            state[f"{key}.{name}"] = whole(value.detach()).clone()
    return state


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def random_numbers() -> torch.Tensor:
    """What a rank's generators are about to give; they are left as they were."""
    before = random_states()
    drawn = torch.cat([before[name].double() for name in sorted(before)])
    return drawn[torch.linspace(0, len(drawn) - 1, 997).long()]
