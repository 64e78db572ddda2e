"""One job whose trainer's ranks die: its manifest, its store, its attempts, and a pool that pulls what they publish."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.polling import eventually
from tests.support.sizes import FULL
from tests.support.template_process import TemplateProcess
from tests.support.trainer.killed_rank import RANKS, Death, RankPlan, run_rank
from tests.support.trainer.rank_job import write_rank_job
from tests.support.trainer.samples import policy
from tests.support.trainer.storages import seal_of
from trimtab.embedded.ports import free_ports
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.rank_place import TrainerPodSettings
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.position import Position

STEPS_PER_LIFE = 8
"""An attempt can make no more before it dies."""
STEPS_AFTERWARDS = 4
MOST_STEPS = FULL.rank_kills * STEPS_PER_LIFE + STEPS_AFTERWARDS
_EVERY_STEPS = 2
_LOOK_S = 0.01
_PULL_S = 60.0
_CHECKPOINTS = "checkpoints/solver"


def write_job(folder: Path, topology: JobTopology, *, every_steps: int = _EVERY_STEPS) -> None:
    trained = policy(checkpoint={"everySteps": every_steps, "keep": 2}, publish={"everySteps": _EVERY_STEPS})
    # No version is passed over, so that any two runs publish the same ones.
    staleness = _EVERY_STEPS - 1
    write_rank_job(folder / "job.yaml", topology, trained, group_size=2, max_staleness=staleness, max_steps=MOST_STEPS)


class Site:
    """One job: its manifest, its store, its streams, and the attempts of its trainer."""

    def __init__(
        self, template: TemplateProcess, folder: Path, model: Path, nats: NatsSettings, objects: ObjectStoreSettings
    ) -> None:
        self._template = template
        self.folder = folder
        self.nats = nats
        self.objects = objects.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})
        self.topology = JobTopology("t", f"k{uuid.uuid4().hex[:12]}")
        self._signer = Signer.generate()
        self._alive: set[int] = set()
        folder.mkdir()
        (folder / "model").symlink_to(model)
        write_job(folder, self.topology)

    def start(self, attempt: int, *, victim: int | None = None, death: Death | None = None) -> list[int]:
        """The process ids of the ranks of one attempt."""
        (port,) = free_ports(1)
        settings = TrainerPodSettings.model_validate(
            {
                "pod": {
                    "namespace": self.topology.namespace,
                    "job": self.topology.job,
                    "role": "trainer",
                    "name": "trainer-0",
                    "policy": "solver",
                },
                "nats": self.nats,
                "object_store": self.objects,
                "weights": {"signing_seed": self._signer.reveal_seed()},
                "probes": {"host": "127.0.0.1", "port": 0},
                "job_file": self.folder / "job.yaml",
                # Another attempt is another pod, with a disk of its own; ranks of the one before may still be alive.
                "scratch": self.folder / "scratch" / str(attempt),
                "attempt": attempt,
            }
        )
        pids = []
        for rank in range(RANKS):
            plan = RankPlan(
                settings=settings, rank=rank, port=port, folder=self.folder, death=death if rank == victim else None
            )
            pids.append(self._template.start(run_rank, plan))
        self._alive.update(pids)
        return pids

    async def ending(self, pid: int, *, timeout_s: float) -> int:
        """The exit code of a rank that ends by itself, or minus the signal it died of."""
        endings: list[int] = []

        def ended() -> bool:
            ending = self._template.ended(pid)
            endings.extend([] if ending is None else [ending])
            return bool(endings)

        await eventually(ended, timeout_s=timeout_s, interval_s=_LOOK_S)
        self._alive.discard(pid)
        return os.waitstatus_to_exitcode(endings[0])

    def end(self, pid: int) -> None:
        """Kill it if it is still there, as torchrun does with the ranks that are left."""
        if pid in self._alive:
            self._alive.discard(pid)
            self._template.end(pid)

    def end_all(self) -> None:
        for pid in list(self._alive):
            self.end(pid)

    async def durable_step(self) -> int:
        """Of the newest checkpoint, which may be further than what was acknowledged: a rank dies in between, too."""
        async with ObjectStore(self.objects) as store:
            index = await self._checkpoints(store).newest()
        return 0 if index is None else index.step

    async def result(self) -> tuple[CheckpointIndex, dict[str, torch.Tensor]]:
        """What the last checkpoint holds, each rank's shards by name."""
        async with ObjectStore(self.objects) as store:
            checkpoints = self._checkpoints(store)
            index = await checkpoints.newest()
            assert index is not None
            shards: dict[str, torch.Tensor] = {}
            for file in index.files:
                path = self.folder / f"result-{file.rank}"
                await checkpoints.fetch(file, path)
                shards |= {f"{file.rank} {name}": tensor for name, tensor in load_file(path).items()}
            names = await ObjectStorage(store, _CHECKPOINTS).names()
            assert len({name.split("/")[1] for name in names}) == 2, "kept are two, and no leftovers"
        return index, shards

    def _checkpoints(self, store: ObjectStore) -> CheckpointStore:
        job = f"{self.topology.namespace}/{self.topology.job}"
        return CheckpointStore(ObjectStorage(store, _CHECKPOINTS), seal_of(self._signer, job=job), keep=2)

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[Pool]:
        """A pool that pulls what its trainer publishes."""
        async with ObjectStore(self.objects) as store:
            puller = WeightPuller(
                store, "solver", Verifier([self._signer.public_text]), folder=self.folder / "copy",
                spool=self.folder / "spool", member="pool", threads=1,
            )  # fmt: skip
            await puller.open()
            try:
                yield Pool(store, puller)
            finally:
                await puller.close()

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))[-4:]
        )


class Pool:
    """Remembers the digest of every version that it has come upon, and asks for no two of one version."""

    def __init__(self, store: ObjectStore, puller: WeightPuller) -> None:
        self._store = store
        self._puller = puller
        self._held = Position(0, 0)
        self.roots: dict[int, str] = {}

    async def pull(self) -> None:
        """Whatever is published can be had whole: every block is verified on the way."""
        latest = await LatestPointer(self._store, "solver").read(deadline_s=_PULL_S)
        if latest is None or latest.newest is None:
            return
        for entry in latest.catalogue:
            version = entry.target.version
            assert self.roots.setdefault(version, entry.root) == entry.root, f"version {version} was two things"
        held = await self._puller.pull(deadline_s=_PULL_S)
        assert held == latest.newest >= self._held
        assert self._puller.copy is not None
        self._puller.copy.verify()
        self._held = held
