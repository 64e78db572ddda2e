"""One rank of the trainer in this process, as trimtab.trainer wires it, and what it leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.trainer.places import PREFIX
from tests.support.trainer.samples import policy
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
from trimtab.trainer.advantages.shaping import AdvantageRule
from trimtab.trainer.background import Background
from trimtab.trainer.batch_stream import BatchStream, RankIdentity
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.object_place import ObjectPlace
from trimtab.trainer.checkpoints.saving import CheckpointSaver
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner
from trimtab.trainer.loop import TrainingLoop
from trimtab.trainer.metrics import TrainerMetrics
from trimtab.trainer.resuming import resume
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

SIGNER = Signer.generate()
SUPERSEDED = LeaseRefused(refusal=Refusal.SUPERSEDED, message="a newer attempt asks")


class Trainer:
    """One rank in this process, as trimtab.trainer wires it."""

    def __init__(
        self, model: Path, nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology, scratch: Path, *,
        every: int = 2, max_staleness: int = 8,
    ) -> None:  # fmt: skip
        self._max_staleness = max_staleness
        self._scratch = scratch
        self._nats = nats
        self._objects = objects
        self._topology = topology
        self._policy = policy(checkpoint={"everySteps": every, "keep": 2})
        self.learner = Learner(self._policy, model_path=model)
        self.stop = threading.Event()
        self.metrics = Metrics()
        self.publisher: WeightPublisher | None = None

    def run(self, *, before: Callable[[], None] = lambda: None) -> None:
        with Background() as background:
            stack = AsyncExitStack()
            try:
                stream, checkpoints = background.run(self._connect(stack))
                resume(self.learner, checkpoints, background, rank=0, scratch=self._scratch)
                saver = CheckpointSaver(self.learner, checkpoints, background, rank=0, acknowledge=stream.acknowledge)
                loop = TrainingLoop(
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
        self.publisher = await WeightPublisher.open(
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
        checkpoints = CheckpointStore(ObjectPlace(store, PREFIX, workshop=self._scratch / "checkpoints"), keep=2)
        await checkpoints.claim(self.publisher.epoch)
        identity = RankIdentity(job=self._topology.job, policy="solver", rank=0, world_size=1, attempt=0)
        subject = self._topology.batch_subject("solver")
        return BatchStream(
            bus, subject, identity, advantages=AdvantageRule(longest_answer=8), clock=lambda: 1.0
        ), checkpoints


async def announced(bus: Bus, topology: JobTopology) -> WeightPointer:
    bucket = KeyValue(bus, topology.weights)
    return decode((await bucket.get("solver", deadline_s=60.0)).value, WeightPointer)


async def newest(store: ObjectStore) -> CheckpointIndex | None:
    return await CheckpointStore(ObjectPlace(store, PREFIX, workshop=Path("unused")), keep=2).newest()


async def saved_step(store: ObjectStore) -> int | None:
    index = await newest(store)
    return None if index is None else index.step
