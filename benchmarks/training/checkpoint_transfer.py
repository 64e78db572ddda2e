"""A checkpoint written and read back, against the same bytes sent and fetched in parallel with nothing but boto3: by
its own transfer manager, and bare, without a checksum, a digest or a signature over anything, which is as fast as the
store takes them.
"""

from __future__ import annotations

import asyncio
import io
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from benchmarks.report import interleaved, note, paired_share
from benchmarks.weights.transfer_memory import PeakMemory
from trimtab.fabric.objects.aws import aws_client
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.credentials import read_credentials
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.layout import FileLayout
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.parts import AT_ONCE, PART_BYTES
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.shards import plan_reads
from trimtab.trainer.checkpoints.staging import StagedFile, Staging
from trimtab.trainer.checkpoints.store import CheckpointStore

OURS, BARE, MANAGED = "ours", "bare", "managed"
_THREADS = (4, AT_ONCE, 16)


@dataclass(frozen=True, kw_only=True)
class TransferFigures:
    bytes: int
    write_s: dict[str, list[float]]
    read_s: dict[str, list[float]]
    write_share: float
    """Of the rate of the fastest raw contender in each round."""
    read_share: float
    read_over_managed: float
    """Against boto3's transfer manager, which verifies nothing here."""
    bare_threads: int
    write_memory: int
    read_memory: int
    """Besides the state and its copy, at most."""

    def figures(self) -> dict[str, object]:
        return {
            "bytes": self.bytes,
            "bare_threads": self.bare_threads,
            "write_share": round(self.write_share, 3),
            "read_share": round(self.read_share, 3),
            "write_memory": self.write_memory,
            "read_memory": self.read_memory,
            "write_gb_s": {name: round(self.bytes / min(values) / 1e9, 3) for name, values in self.write_s.items()},
            "read_gb_s": {name: round(self.bytes / min(values) / 1e9, 3) for name, values in self.read_s.items()},
            "write_s": {name: [round(value, 3) for value in values] for name, values in self.write_s.items()},
            "read_s": {name: [round(value, 3) for value in values] for name, values in self.read_s.items()},
        }


def measure_transfer(objects: ObjectStoreSettings, *, layers: int, rounds: int) -> TransferFigures:
    state = state_of(layers=layers)
    site = _Site(objects.model_copy(update={"prefix": f"transfer-{uuid.uuid4().hex[:8]}"}), state)
    try:
        site.write()  # makes connections and takes memory
        threads = min(_THREADS, key=lambda count: site.bare_write(threads=count))
        writes = interleaved(
            {OURS: site.write, BARE: lambda: site.bare_write(threads=threads), MANAGED: site.managed_write},
            rounds=rounds,
        )
        note(f"written in {writes} s, bare with {threads} threads")
        reads = interleaved(
            {OURS: site.read, BARE: lambda: site.bare_read(threads=threads), MANAGED: site.managed_read},
            rounds=rounds,
        )
        note(f"read in {reads} s")
        memory = [_memory_of(action) for action in (site.write, site.read)]
    finally:
        site.close()
    return TransferFigures(
        bytes=site.staged.size,
        write_s=writes,
        read_s=reads,
        write_share=_share(writes),
        read_share=_share(reads),
        read_over_managed=1 / paired_share(reads[OURS], reads[MANAGED]),
        bare_threads=threads,
        write_memory=memory[0],
        read_memory=memory[1],
    )


def state_of(*, layers: int) -> dict[str, torch.Tensor]:
    """Weights and both moments of a few layers of a model of a billion weights."""
    shapes = {"mlp.up": (5632, 2048), "mlp.down": (2048, 5632), "attention": (2048, 2048), "norm": (2048,)}
    state = {}
    for kind in ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
        for layer in range(layers):
            for name, shape in shapes.items():
                state[f"{kind}layers.{layer}.{name}"] = torch.rand(shape)
    return state


def _share(seconds: dict[str, list[float]]) -> float:
    fastest = [min(pair) for pair in zip(seconds[BARE], seconds[MANAGED], strict=True)]
    return 1 / paired_share(seconds[OURS], fastest)


def _memory_of(action: Callable[[], float]) -> int:
    with PeakMemory() as memory:
        before = memory.now()
        action()
    return memory.peak - before


class _Site:
    """One store, one state, and each way to bring the one to the other. Every call gives its seconds."""

    def __init__(self, objects: ObjectStoreSettings, state: dict[str, torch.Tensor]) -> None:
        self._objects = objects
        self._state = state
        self._step = 0
        self.staged: StagedFile = Staging().copy(state)
        self._bodies = [self.staged.part(number) for number in range(-(-self.staged.size // PART_BYTES))]
        self._target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        plain = Config(
            max_pool_connections=max(_THREADS),
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # A store that is short of processor time closes connections, on whoever sends: ours begins anew as well.
        self._bare = aws_client("s3", objects, read_credentials(objects), attempts=6, config=plain)
        signer = Signer.generate()
        self._seal = CheckpointSeal(job="b/j", policy="p", signer=signer, verifier=Verifier([signer.public_text]))

    def write(self) -> float:
        """What a trainer does beside its steps: everything from the copy in memory to the committed pointer."""
        self._step += 1
        return asyncio.run(self._written(self._step))

    async def _written(self, step: int) -> float:
        async with ObjectStore(self._objects) as store:
            checkpoints = self._checkpoints(store)
            await checkpoints.claim(step)
            began = time.perf_counter()
            file = await checkpoints.put(self.staged, step=step)
            await checkpoints.commit(
                CheckpointIndex(
                    epoch=step,
                    step=step,
                    lease_id="l",
                    world_size=1,
                    optimizer_steps=dict.fromkeys(self._state, 1),
                    files=(file,),
                )
            )
            return time.perf_counter() - began

    def read(self) -> float:
        """What a trainer does when it resumes: everything from the pointer to the tensors."""
        return asyncio.run(self._was_read())

    async def _was_read(self) -> float:
        async with ObjectStore(self._objects) as store:
            checkpoints = self._checkpoints(store)
            began = time.perf_counter()
            index = await checkpoints.newest()
            assert index is not None
            (header,) = await checkpoints.headers(index.files)
            (file,) = index.files
            plan = plan_reads(self._target, {}, {0: (file, FileLayout.read(header, where=file.name))})
            wanted = [(file, part) for _, part in plan.parts]
            await checkpoints.read(wanted, lambda file, part, body: plan.take(file.rank, part, body))
            plan.finish()
            seconds = time.perf_counter() - began
        for name, tensor in self._target.items():
            if not torch.equal(tensor, self._state[name]):
                raise AssertionError(f"{name} is not what was written")
            tensor.zero_()
        return seconds

    def _checkpoints(self, store: ObjectStore) -> CheckpointStore:
        return CheckpointStore(ObjectStorage(store, "checkpoints/p"), self._seal, keep=1)

    def bare_write(self, *, threads: int) -> float:
        def put(number: int) -> None:
            self._bare.put_object(Bucket=self._objects.bucket, Key=self._bare_key(number), Body=self._bodies[number])

        return _timed(put, range(len(self._bodies)), threads=threads)

    def bare_read(self, *, threads: int) -> float:
        def get(number: int) -> None:
            answer = self._bare.get_object(Bucket=self._objects.bucket, Key=self._bare_key(number))
            window = memoryview(bytearray(answer["ContentLength"]))
            with answer["Body"] as body:
                while window:
                    window = window[body.readinto(window) :]

        return _timed(get, range(len(self._bodies)), threads=threads)

    def managed_write(self) -> float:
        body = io.BytesIO(b"".join(self._bodies))
        began = time.perf_counter()
        self._bare.upload_fileobj(body, self._objects.bucket, self._managed_key, Config=_managed())
        return time.perf_counter() - began

    def managed_read(self) -> float:
        body = io.BytesIO()
        began = time.perf_counter()
        self._bare.download_fileobj(self._objects.bucket, self._managed_key, body, Config=_managed())
        return time.perf_counter() - began

    def _bare_key(self, number: int) -> str:
        return f"{self._objects.prefix}/bare/{number}"

    @property
    def _managed_key(self) -> str:
        return f"{self._objects.prefix}/managed"

    def close(self) -> None:
        self._bare.close()


def _managed() -> TransferConfig:
    return TransferConfig(multipart_chunksize=PART_BYTES, max_concurrency=10)


def _timed(action: Callable[[int], Any], numbers: range, *, threads: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(action, numbers))
    return time.perf_counter() - began
