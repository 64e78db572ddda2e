"""NATS and the object store away for a while, both at once: nothing is lost, and the worker catches up."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.quickstart.make import make_model
from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.forked_pods import RolloutPod
from tests.support.rollout.job import Job, first_runs
from tests.support.rollout.pod_site import POLICY, PodSite
from tests.support.template_process import TemplateProcess
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.trajectory import Scored
from trimtab.weights.baseline import SafetensorsFile
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

pytestmark = pytest.mark.slow

OUTAGE_S = 30.0
GROUP = 2
BEFORE, DURING, AFTER = 10, 20, 5
SLOW = {"prompt": "1,2,3>", "answer": "3", "seconds": 4.0}
_D = 20.0
_RULES = UpkeepRules(
    anchor_every=100, fold_every=None, collection=CollectionRules(keep_versions=50, lease_ttl_s=600.0, grace_s=600.0)
)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path / "nats", supervise=False) as server:
        yield server


@pytest.fixture
def seaweed(tmp_path: Path) -> Iterator[EmbeddedSeaweed]:
    with EmbeddedSeaweed(tmp_path / "seaweedfs", supervise=False) as server:
        yield server


@pytest.fixture
def engine(rollout_model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(rollout_model, tmp_path)
    process.start()
    yield process
    process.kill()


async def test_a_worker_outlives_a_time_without_broker_and_store(
    nats: EmbeddedNats,
    seaweed: EmbeddedSeaweed,
    engine: EngineProcess,
    rollout_model: Path,
    rollout_template: TemplateProcess,
    tmp_path: Path,
) -> None:
    signer = Signer.generate()
    site = PodSite(
        folder=tmp_path / "site",
        job=f"outage-{uuid.uuid4().hex[:8]}",
        model=rollout_model,
        engine_url=engine.url,
        nats=nats.settings,
        store=seaweed.settings,
        public_key=signer.public_text,
        engine={"name": "builtin"},
        workflow={"entrypoint": "tests.support.rollout.troubled_workflows:TakesItsTime"},
        group_size=GROUP,
    )
    site.lay_out()
    make_model(tmp_path / "trained", seed=1)
    pod = RolloutPod(site, "w0", rollout_template)
    async with await Bus.connect(nats.settings, name="test") as bus:
        await declare_job(bus, site.topology, deadline_s=_D)
        job = Job(bus, site.topology)
        pointer = await _publish_unannounced(bus, site, signer, tmp_path)
        pod.start()
        await _issue(job, "before", BEFORE)
        await pod.settles(job, timeout_s=90.0)

        # Announced while the store is away, so that the worker wants what it cannot have.
        await asyncio.to_thread(seaweed.stop)
        announced = await KeyValue.declare(bus, site.topology.weights, deadline_s=_D)
        await announced.put(POLICY, pointer, deadline_s=_D)
        await _issue(job, "during", DURING, prompt=SLOW)

        async def under_way() -> bool:
            return await pod.metric("in_flight") > 0

        await eventually(under_way, timeout_s=20.0)
        nats.kill()
        await asyncio.sleep(OUTAGE_S)
        assert pod.runs, pod.said()
        assert await pod.metric("weight_version", policy=POLICY) == 0
        await asyncio.gather(asyncio.to_thread(nats.start), asyncio.to_thread(seaweed.start))

        async def fresh() -> bool:
            return await pod.metric("weight_version", policy=POLICY) == 1

        await pod.settles(job, timeout_s=120.0)
        await eventually(fresh, timeout_s=60.0)
        await _issue(job, "after", AFTER)
        await pod.settles(job, timeout_s=60.0)
        await pod.leave()
        trajectories = first_runs(await job.trajectories())
    tasks = [f"{name}-{n}" for name, count in _COUNTS.items() for n in range(count)]
    wanted = Counter(f"{task}.{POLICY}.{index}.0" for task in tasks for index in range(GROUP))
    assert Counter(trajectory.trajectory_id for trajectory in trajectories) == wanted
    assert all(isinstance(trajectory.outcome, Scored) for trajectory in trajectories)
    versions = {t.task_id: t.oldest_version for t in trajectories}
    assert {versions[f"before-{n}"] for n in range(BEFORE)} == {0}
    assert {versions[f"after-{n}"] for n in range(AFTER)} == {1}


_COUNTS = {"before": BEFORE, "during": DURING, "after": AFTER}


async def _publish_unannounced(bus: Bus, site: PodSite, signer: Signer, tmp_path: Path) -> bytes:
    """Version 1 is in the store, and its pointer in a bucket that nobody watches. Returns the pointer."""
    aside = await KeyValue.declare(bus, JobTopology("aside", site.job).weights, deadline_s=_D)
    async with ObjectStore(site.store) as store:
        publisher = await WeightPublisher.open(
            store, aside, job=site.job, policy=POLICY, signer=signer, rules=_RULES, folder=tmp_path / "publisher",
            clock=lambda: 1.0, deadline_s=_D,
        )  # fmt: skip
        try:
            file = SafetensorsFile(tmp_path / "trained" / "model.safetensors")
            await publisher.publish(1, publisher.capture(file), deadline_s=_D)
        finally:
            await publisher.close()
    return (await aside.get(POLICY, deadline_s=_D)).value


async def _issue(job: Job, name: str, count: int, **changes: object) -> None:
    for number in range(count):
        await job.issue(1, task_id=f"{name}-{number}", group_size=GROUP, **changes)
