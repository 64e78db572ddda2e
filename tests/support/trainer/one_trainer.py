"""One rank of the trainer in this process, as trimtab.trainer wires it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.polling import eventually
from tests.support.trainer.samples import policy
from tests.support.trainer.storages import PREFIX, seal_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import LeaseRefused, Refusal
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.background import Background
from trimtab.trainer.batch_stream import BatchStream, RankIdentity
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.resume import meet_ledger, resume
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.checkpoints.storage import CheckpointStorage
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner
from trimtab.trainer.loop import TrainingLoop
from trimtab.trainer.metrics import TrainerMetrics
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

SIGNER = Signer.generate()
SUPERSEDED = LeaseRefused(refusal=Refusal.SUPERSEDED, message="a newer attempt asks")


class StorageMaker(Protocol):
    def __call__(self, store: ObjectStore, prefix: str) -> CheckpointStorage: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a trainer is made of. A test that wants one of them to fail or to be slow gives its own."""

    learner: type[Learner] = Learner
    publisher: type[WeightPublisher] = WeightPublisher
    loop: type[TrainingLoop] = TrainingLoop
    storage: StorageMaker = ObjectStorage


AS_WIRED = Parts()


class Trainer:
    """One rank in this process, as trimtab.trainer wires it."""

    def __init__(
        self, model: Path, nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology, scratch: Path, *,
        every: int = 2, max_staleness: int = 8, parts: Parts = AS_WIRED,
    ) -> None:  # fmt: skip
        self._parts = parts
        self._max_staleness = max_staleness
        self._scratch = scratch
        self._nats = nats
        self._objects = objects
        self._topology = topology
        self._policy = policy(checkpoint={"everySteps": every, "keep": 2})
        self.learner = parts.learner(self._policy, model_path=model)
        self.stop = threading.Event()
        self.metrics = Metrics()
        self.publisher: WeightPublisher | None = None

    def run(self, *, before: Callable[[], None] = lambda: None) -> None:
        with Background() as background:
            stack = AsyncExitStack()
            try:
                stream, checkpoints = background.run(self._connect(stack))
                resume(self.learner, checkpoints, background, rank=0)
                background.run(
                    meet_ledger(
                        stream, step=self.learner.step, proof=checkpoints.proof, where="the store",
                        stopping=self.stop.is_set,
                    )
                )  # fmt: skip
                saver = CheckpointSaver(self.learner, checkpoints, background, rank=0, acknowledge=stream.acknowledge)
                loop = self._parts.loop(
                    self.learner, stream, saver, self.publisher, background, TrainerMetrics(self.metrics),
                    policy=self._policy, max_staleness=self._max_staleness, stopping=self.stop.is_set,
                )  # fmt: skip
                before()
                loop.run()
            finally:
                background.run(stack.aclose())

    async def _connect(self, stack: AsyncExitStack) -> tuple[BatchStream, CheckpointStore]:
        bus = await stack.enter_async_context(await Bus.connect(self._nats, name="trainer"))
        store = await stack.enter_async_context(ObjectStore(self._objects))
        pointers = await KeyValue.declare(bus, self._topology.weights, deadline_s=60.0)
        self.publisher = await self._parts.publisher.open(
            store,
            pointers,
            job=self._topology.job,
            policy="solver",
            signer=SIGNER,
            rules=UpkeepRules(
                anchor_every=100,
                fold_every=16,
                collection=CollectionRules(keep_versions=5, lease_ttl_s=600.0, grace_s=600.0),
            ),
            folder=self._scratch,
            clock=lambda: 1.0,
            deadline_s=60.0,
        )
        stack.push_async_callback(self.publisher.close)
        storage = self._parts.storage(store, PREFIX)
        checkpoints = CheckpointStore(storage, seal_of(SIGNER), keep=2)
        await checkpoints.claim(self.publisher.epoch)
        identity = RankIdentity(job=self._topology.job, policy="solver", rank=0, world_size=1, attempt=0)
        subject = self._topology.batch_subject("solver")
        return BatchStream(
            bus, subject, identity, advantages=AdvantageRule(longest_answer=8), clock=lambda: 1.0
        ), checkpoints


async def eventually_while(run: asyncio.Task[None], condition: Callable[[], bool], *, timeout_s: float) -> None:
    """As `eventually`, but a trainer that ends first fails the test at once, with what it ended with."""
    await eventually(lambda: run.done() or condition(), timeout_s=timeout_s)
    if not condition():
        run.result()
        raise AssertionError("the trainer has ended, and this was not so before")


async def announced(bus: Bus, topology: JobTopology) -> WeightPointer:
    bucket = KeyValue(bus, topology.weights)
    return decode((await bucket.get("solver", deadline_s=60.0)).value, WeightPointer)


async def newest(store: ObjectStore, *, job: str = "n/j") -> CheckpointIndex | None:
    storage = ObjectStorage(store, PREFIX)
    return await CheckpointStore(storage, seal_of(SIGNER, job=job), keep=2).newest()


async def saved_step(store: ObjectStore, *, job: str = "n/j") -> int | None:
    index = await newest(store, job=job)
    return None if index is None else index.step
