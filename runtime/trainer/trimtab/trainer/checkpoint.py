"""What a restart resumes from, in object storage: one safetensors file per checkpoint and a pointer to the newest.

Optimiser state is tensors, so safetensors holds it as it holds weights; nothing here can execute code when it is read.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from safetensors.torch import load, save

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.objects.upload import upload
from trimtab.trainer.learner import Learner

_MAX_POINTER_BYTES = 1 << 14
_MOMENTS = ("exp_avg", "exp_avg_sq")
_DEADLINE_S = 600.0


class CheckpointDamaged(RuntimeError):
    """A checkpoint does not have the digest its pointer names, or does not fit the model."""


class CheckpointPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint: the updates in it, and the file that holds it."""

    step: Annotated[int, Meta(ge=0)]
    key: str
    size: Annotated[int, Meta(ge=0)]
    sha256: str


def snapshot(learner: Learner) -> bytes:
    """Model and optimiser as one safetensors file. The values are copied: training may go on while it is uploaded."""
    tensors = {f"model/{name}": tensor for name, tensor in learner.model.named_parameters()}
    for name, parameter in learner.model.named_parameters():
        state = learner.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                tensors[f"optimizer/{moment}/{name}"] = state[moment]
        if "step" in state:
            tensors[f"optimizer/step/{name}"] = state["step"].reshape(1)
    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


@torch.no_grad()
def restore(learner: Learner, body: bytes, *, step: int) -> None:
    tensors = load(body)
    for name, parameter in learner.model.named_parameters():
        saved = tensors.get(f"model/{name}")
        if saved is None or saved.shape != parameter.shape:
            raise CheckpointDamaged(f"the checkpoint has no fitting {name}: was policies[].model changed?")
        parameter.copy_(saved)
        if f"optimizer/step/{name}" in tensors:
            learner.optimizer.state[parameter] = {
                "step": tensors[f"optimizer/step/{name}"].reshape(()),
                **{moment: tensors[f"optimizer/{moment}/{name}"] for moment in _MOMENTS},
            }
    learner.step = step


class CheckpointStore:
    """The checkpoints of one policy. Only one rank writes; the dataflow refuses an older attempt its next step."""

    def __init__(self, store: ObjectStore, policy: str, *, keep: int) -> None:
        self._store = store
        self._folder = f"checkpoints/{policy}"
        self._keep = keep
        self._written: list[str] = []

    async def newest(self) -> tuple[CheckpointPointer, bytes] | None:
        try:
            stored = await self._store.get(f"{self._folder}/latest.json", max_bytes=_MAX_POINTER_BYTES)
        except ObjectNotFound:
            return None
        pointer = msgspec.json.decode(stored.body, type=CheckpointPointer)
        shape = DownloadShape(max_bytes=pointer.size)
        _, body = await download(self._store, pointer.key, deadline_s=_DEADLINE_S, shape=shape)
        if hashlib.sha256(body).hexdigest() != pointer.sha256:
            raise CheckpointDamaged(f"{self._store.where(pointer.key)} does not have the digest its pointer names")
        return pointer, bytes(body)

    async def write(self, step: int, body: bytes) -> None:
        """The file first, the pointer to it when it is there: a crash leaves the older checkpoint in force."""
        sha256 = hashlib.sha256(body).hexdigest()
        key = f"{self._folder}/{step:012d}-{sha256[:16]}.safetensors"
        await upload(self._store, key, body, deadline_s=_DEADLINE_S)
        pointer = CheckpointPointer(step=step, key=key, size=len(body), sha256=sha256)
        await self._store.put(f"{self._folder}/latest.json", msgspec.json.encode(pointer))
        if key not in self._written:
            self._written.append(key)
        while len(self._written) > self._keep:
            await self._store.delete(self._written.pop(0))
