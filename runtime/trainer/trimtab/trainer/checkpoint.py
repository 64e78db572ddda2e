"""What a restart resumes from, in object storage: one safetensors file per checkpoint and a pointer to the newest.

Optimiser state is tensors, so safetensors holds it as it holds weights; nothing here can execute code when it is read.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated

import msgspec
import structlog
import torch
from msgspec import Meta
from safetensors.torch import load, save

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.download import DownloadShape, download
from trimtab.fabric.objects.errors import ObjectNotFound, ObjectStoreError, PreconditionFailed
from trimtab.fabric.objects.upload import upload
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.sharding import spread_like, whole
from trimtab.weights.store.latest import SupersededTrainer

_log = structlog.get_logger(__name__)
_MAX_POINTER_BYTES = 1 << 14
_MOMENTS = ("exp_avg", "exp_avg_sq")
_DEADLINE_S = 600.0
_SWAP_ATTEMPTS = 10
_SWAP_DELAY_S = 0.1


class CheckpointDamaged(RuntimeError):
    """A checkpoint does not have the digest its pointer names, or does not fit the model."""


class CheckpointPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint: the updates in it, the file that holds it, and the trainer that may replace it."""

    epoch: Annotated[int, Meta(ge=0)]
    step: Annotated[int, Meta(ge=0)]
    key: str
    size: Annotated[int, Meta(ge=0)]
    sha256: str


@torch.no_grad()
def snapshot(learner: Learner) -> bytes:
    """Model and optimiser as one safetensors file. The values are copied: training may go on while it is uploaded.

    All ranks call it together, each putting in its share of the tensors.
    """
    tensors = {}
    for name, parameter in learner.model.named_parameters():
        tensors[f"model/{name}"] = whole(parameter)
        state = learner.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                tensors[f"optimizer/{moment}/{name}"] = whole(state[moment])
        if "step" in state:
            tensors[f"optimizer/step/{name}"] = state["step"].reshape(1)
    return save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})


@torch.no_grad()
def restore(learner: Learner, body: bytes, *, step: int) -> None:
    tensors = load(body)
    for name, parameter in learner.model.named_parameters():
        saved = tensors.get(f"model/{name}")
        if saved is None or saved.shape != parameter.shape:
            raise CheckpointDamaged(f"the checkpoint has no fitting {name}: was policies[].model changed?")
        parameter.copy_(spread_like(parameter, saved))
        if f"optimizer/step/{name}" in tensors:
            learner.optimizer.state[parameter] = {
                # Copies: what is read lies in the file's bytes, and the optimiser writes into its state.
                "step": tensors[f"optimizer/step/{name}"].reshape(()).clone(),
                **{
                    moment: spread_like(parameter, tensors[f"optimizer/{moment}/{name}"]).clone() for moment in _MOMENTS
                },
            }
    learner.step = step


class CheckpointStore:
    """The checkpoints of one policy. Only rank 0 writes, after `claim`."""

    def __init__(self, store: ObjectStore, policy: str, *, keep: int) -> None:
        self._store = store
        self._folder = f"checkpoints/{policy}"
        self._pointer_key = f"{self._folder}/latest.json"
        self._keep = keep
        self._epoch: int | None = None

    async def claim(self, epoch: int) -> None:
        """Become the writer: a trainer of a lower epoch that is not quite dead cannot move the pointer any more."""
        self._epoch = epoch
        present = await self._read_pointer()
        if present is not None:
            await self._move_pointer(msgspec.structs.replace(present[0], epoch=epoch))

    async def newest(self) -> tuple[CheckpointPointer, bytes] | None:
        present = await self._read_pointer()
        if present is None:
            return None
        pointer, _ = present
        shape = DownloadShape(max_bytes=pointer.size)
        _, body = await download(self._store, pointer.key, deadline_s=_DEADLINE_S, shape=shape)
        if hashlib.sha256(body).hexdigest() != pointer.sha256:
            raise CheckpointDamaged(f"{self._store.where(pointer.key)} does not have the digest its pointer names")
        return pointer, bytes(body)

    async def write(self, step: int, body: bytes) -> None:
        """The file first, the pointer to it when it is there: a crash leaves the older checkpoint in force."""
        if self._epoch is None:
            raise RuntimeError("claim the checkpoints before writing one")
        sha256 = hashlib.sha256(body).hexdigest()
        key = f"{self._folder}/files/{step:012d}-{sha256[:16]}.safetensors"
        await upload(self._store, key, body, deadline_s=_DEADLINE_S)
        await self._move_pointer(
            CheckpointPointer(epoch=self._epoch, step=step, key=key, size=len(body), sha256=sha256)
        )
        await self._forget_old(key)

    async def _read_pointer(self) -> tuple[CheckpointPointer, str] | None:
        try:
            stored = await self._store.get(self._pointer_key, max_bytes=_MAX_POINTER_BYTES)
        except ObjectNotFound:
            return None
        return msgspec.json.decode(stored.body, type=CheckpointPointer), stored.info.etag

    async def _move_pointer(self, pointer: CheckpointPointer) -> None:
        body = msgspec.json.encode(pointer)
        for _ in range(_SWAP_ATTEMPTS):
            present = await self._read_pointer()
            try:
                if present is None:
                    await put_if_absent(self._store, self._pointer_key, body)
                    return
                if present[0].epoch > pointer.epoch:
                    raise SupersededTrainer(f"epoch {pointer.epoch} of {self._folder} has a successor")
                await compare_and_swap(self._store, self._pointer_key, body, etag=present[1])
            except PreconditionFailed:
                await asyncio.sleep(_SWAP_DELAY_S)
            else:
                return
        raise SupersededTrainer(f"{self._pointer_key} is being written by another trainer")

    async def _forget_old(self, newest: str) -> None:
        """Keys sort by step. Deleting is tidiness: what cannot be deleted now goes with the next checkpoint."""
        try:
            keys = sorted([info.key async for info in self._store.scan(f"{self._folder}/files/")], reverse=True)
            older = [key for key in keys if key < newest]
            for key in older[self._keep - 1 :]:
                await self._store.delete(key)
        except ObjectStoreError as error:
            _log.warning("old_checkpoints_not_deleted", error=str(error))
