"""What signatures cost a checkpoint: the same state saved and read back, signed and not, in turns on a real store."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.report import interleaved, note, paired_share
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.index import CheckpointFile, CheckpointIndex
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.parts import FileOnDisk
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.store import CheckpointStore

SIGNED, UNSIGNED = "signed", "unsigned"
ROUNDS = 7
_TENSORS = 300
"""As many as a model of a few billion weights has, and with it the index."""
_VALUES = 1 << 16


class _NoSigner(Signer):
    def sign(self, message: bytes) -> bytes:
        return bytes(64)


class _NoVerifier(Verifier):
    def verify(self, signature: bytes, message: bytes) -> None:
        """Believes everything."""


@dataclass(frozen=True, kw_only=True)
class SigningFigures:
    seconds: dict[str, float]
    """A save and a read, medians."""
    signed_over_unsigned: float
    """Of whole checkpoints, in which the store's own time is far larger, and varies by more than signatures take."""
    seal_and_open_s: float
    """Of an index alone, without the store."""
    share: float
    """Of index and pointer, in the time of a checkpoint without signatures."""
    bytes: int

    def figures(self) -> dict[str, object]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in vars(self).items()}


def measure_signing(objects: ObjectStoreSettings) -> SigningFigures:
    signer = Signer.generate()
    seals = {
        SIGNED: CheckpointSeal(job="benchmark/job", policy="p", signer=signer, verifier=Verifier([signer.public_text])),
        UNSIGNED: CheckpointSeal(
            job="benchmark/job",
            policy="p",
            signer=_NoSigner(signer.reveal_seed()),
            verifier=_NoVerifier([signer.public_text]),
        ),
    }
    state = {f"model.layers.{number}.weight": torch.rand(_VALUES) for number in range(_TENSORS)}
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name:
        folder = Path(name)
        results = interleaved(
            {
                kind: lambda seal=seal: asyncio.run(_saved_and_read(seal, objects, state, folder))  # type: ignore[misc]
                for kind, seal in seals.items()
            },
            rounds=ROUNDS,
        )
    note(f"checkpoints: {results} s")
    seconds = {kind: statistics.median(values) for kind, values in results.items()}
    alone = _alone(seals[SIGNED], state)
    return SigningFigures(
        seconds=seconds,
        share=2 * alone / seconds[UNSIGNED],
        signed_over_unsigned=paired_share(results[SIGNED], results[UNSIGNED]),
        seal_and_open_s=alone,
        bytes=4 * _TENSORS * _VALUES,
    )


async def _saved_and_read(
    seal: CheckpointSeal, objects: ObjectStoreSettings, state: dict[str, torch.Tensor], folder: Path
) -> float:
    own = objects.model_copy(update={"prefix": f"signing-{uuid.uuid4().hex[:8]}"})
    async with ObjectStore(own) as store:
        checkpoints = CheckpointStore(ObjectStorage(store, "checkpoints/p"), seal, keep=1)
        began = time.perf_counter()
        await checkpoints.claim(1)
        path = folder / "written"
        await asyncio.to_thread(save_file, state, path)
        file = await checkpoints.put(FileOnDisk(path), step=1)
        await checkpoints.commit(_index(file, state))
        newest = await CheckpointStore(ObjectStorage(store, "checkpoints/p"), seal, keep=1).newest()
        assert newest is not None
        await checkpoints.fetch(newest.files[0], folder / "read")
        return time.perf_counter() - began


def _index(file: CheckpointFile, state: dict[str, torch.Tensor]) -> CheckpointIndex:
    steps = dict.fromkeys(state, 1)
    return CheckpointIndex(epoch=1, step=1, lease_id="l", world_size=1, optimizer_steps=steps, files=(file,))


def _alone(seal: CheckpointSeal, state: dict[str, torch.Tensor]) -> float:
    digest = "0" * 64
    file = CheckpointFile(
        rank=0, name="a/b", size=1, part_bytes=1, digests=(digest,), header_size=1, header_sha256=digest
    )
    index = _index(file, state)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        seal.opened(seal.seal(index), CheckpointIndex, where="benchmark")
        times.append(time.perf_counter() - began)
    return statistics.median(times)
