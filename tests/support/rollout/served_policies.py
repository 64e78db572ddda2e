"""Policies on real engines, with real weights that come through a real store and bus, as rollout workers serve them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.rollout.beside import beside
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.version_gate import BASE, label_of
from trimtab.rollout.refresh.swap import SwapMetrics
from trimtab.rollout.refresh.turns import PoolCensus, TurnTimings
from trimtab.rollout.worker.served_engines import ServedEngines, served_engines
from trimtab.rollout.worker.served_policy import PodResources, ServedPolicy, refreshed_policy
from trimtab.rollout.workflows.team import Role
from trimtab.weights.baseline import SafetensorsFile
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

D = 60.0
SIGNER = Signer.generate()
RULES = UpkeepRules(
    anchor_every=100, fold_every=None, collection=CollectionRules(keep_versions=50, lease_ttl_s=600.0, grace_s=600.0)
)
POLICY = Policy.model_validate({"name": "solver", "model": {"uri": "0"}})
POOL = JobPool.model_validate({"name": "p", "engine": {"requestTimeoutSeconds": 30}})


@dataclass
class WeightsOfJob:
    """One policy's weights: whoever publishes them, and where workers find them."""

    job: Job
    store: ObjectStore
    models: Path
    scratch: Path
    closing: AsyncExitStack
    settings: ObjectStoreSettings
    """Of this job's part of the store."""
    public_key: str
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._swap_metrics = SwapMetrics(self.metrics)

    @property
    def pointers(self) -> KeyValue:
        return KeyValue(self.job.bus, self.job.topology.weights)

    @property
    def members(self) -> KeyValue:
        return KeyValue(self.job.bus, self.job.topology.members)

    async def publisher(self) -> WeightPublisher:
        """A trainer that has just started, with an epoch of its own."""
        publisher = await WeightPublisher.open(
            self.store, self.pointers, job=self.job.topology.job, policy="solver", signer=SIGNER, rules=RULES,
            folder=self.scratch / uuid.uuid4().hex, clock=lambda: 1.0, deadline_s=D,
        )  # fmt: skip
        self.closing.push_async_callback(publisher.close)
        return publisher

    async def publish(self, publisher: WeightPublisher, version: int, *, model: Path | None = None) -> None:
        """Version v has the weights of folder v modulo 3, if no other is given."""
        file = SafetensorsFile((model or self.models / str(version % 3)) / "model.safetensors")
        await publisher.publish(version, publisher.capture(file), deadline_s=D)

    def resources(self, name: str, *, resumed: bool = False) -> PodResources:
        """Of a worker of this name; its scratch is what an earlier one left."""
        return PodResources(
            member=name,
            pool=POOL,
            folder=self.models,
            api_key=None,
            scratch=self.scratch / name,
            store=self.store,
            trusted=Verifier([self.public_key]),
            pointers=self.pointers,
            swaps=KeyValue(self.job.bus, self.job.topology.swaps),
            census=PoolCensus(self.members, pool=POOL.name, clock=time.monotonic, deadline_s=D),
            metrics=self._swap_metrics,
            # On a busy machine too, nobody swaps without a turn.
            turn_timings=TurnTimings(patience_s=600.0, deadline_s=D),
            resumed=resumed,
        )

    @asynccontextmanager
    async def worker_policy(
        self, url: str, *, name: str = "w0", resumed: bool = False
    ) -> AsyncIterator[ServedPolicy[EngineClient]]:
        """As a worker that starts sits down at an engine."""
        async with AsyncExitStack() as stack:
            resources = self.resources(name, resumed=resumed)
            served_policy = await refreshed_policy(POLICY, url, resources, stack)
            async with beside(served_policy.refresh.run()):
                yield served_policy

    @asynccontextmanager
    async def worker_engines(self, *urls: str, name: str = "w0") -> AsyncIterator[ServedEngines]:
        """The same for a pod with several engines of the policy."""
        async with AsyncExitStack() as stack:
            engines = await served_engines(POLICY, urls, self.resources(name), stack)
            assert engines is not None
            for seat in engines.seats:
                await stack.enter_async_context(beside(seat.refresh.run()))
            yield engines


@asynccontextmanager
async def weights_of(
    job: Job,
    settings: ObjectStoreSettings,
    models: Path,
    scratch: Path,
    *,
    public_key: str = SIGNER.public_text,
) -> AsyncIterator[WeightsOfJob]:
    async with ObjectStore(settings) as store, AsyncExitStack() as closing:
        yield WeightsOfJob(job, store, models, scratch, closing, settings, public_key)


def own_part(settings: ObjectStoreSettings) -> ObjectStoreSettings:
    """Where no other test stores anything."""
    return settings.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})


async def reset(process: EngineProcess, models: Path) -> None:
    """As if the engine had just been started: an engine of a pod never works for two jobs."""
    await process.serves()
    async with EngineClient(process.url, request_timeout_s=D) as engine:
        await engine.resume(timeout_s=D)
        await engine.update_weights_from_disk(models / "0", weight_version=label_of(BASE), timeout_s=D)


def roles_of(
    served_policy: ServedPolicy[EngineClient] | ServedEngines, *, max_new_tokens: int = 40
) -> Mapping[str, Role]:
    return {"solver": replace(served_policy.role("solver"), sampling=SamplingSettings(max_new_tokens=max_new_tokens))}
