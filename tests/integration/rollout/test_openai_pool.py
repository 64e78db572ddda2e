"""A worker whose pool is an OpenAI-compatible endpoint: the pod's own process, against the built-in engine's /v1."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from tests.support.rollout.pod_site import POLICY, PodSite, metric, openai_engine
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.member import MemberHeartbeat
from trimtab.fabric.wire.trajectory import Scored
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings

pytestmark = pytest.mark.slow

TASKS = 5
KEY = "sk-not-for-the-log"


@pytest.fixture
async def site(
    engine_process: EngineProcess,
    models: Path,
    nats_settings: NatsSettings,
    object_store_settings: ObjectStoreSettings,
    tmp_path: Path,
) -> PodSite:
    site = PodSite(
        folder=tmp_path / "site",
        job=f"o{uuid.uuid4().hex[:12]}",
        model=models / "0",
        engine_url=engine_process.url,
        nats=nats_settings,
        store=object_store_settings,
        public_key=Signer.generate().public_text,
        engine=openai_engine(models / "0"),
        workflow={"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
        max_tokens=8,
        max_staleness=1,
        api_key=KEY,
    )
    site.lay_out()
    return site


@dataclass(frozen=True, kw_only=True)
class Pod:
    process: subprocess.Popen[bytes]
    port: int


@pytest.fixture
async def pod(site: PodSite, engine: EngineClient) -> AsyncIterator[Pod]:
    """A pod of the site; it has to leave as it is told, and well."""
    environment, port = site.environment("w0")
    with site.log("w0").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab.rollout"], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        yield Pod(process=process, port=port)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 300.0) == 0, site.log("w0").read_text()
    finally:
        process.kill()
        process.wait(120.0)


async def test_its_trajectories_are_those_of_generate_until_its_weights_are_too_old(
    site: PodSite, bus: Bus, engine: EngineClient, pod: Pod
) -> None:
    await declare_job(bus, site.topology, deadline_s=60.0)
    job = Job(bus, site.topology)
    await job.issue(TASKS, group_size=2, sampling={"temperature": 0.0})
    await eventually(job.settled, timeout_s=90.0, ended=pod.process.poll)
    trajectories = await job.trajectories()
    assert len({trajectory.trajectory_id for trajectory in trajectories}) == len(trajectories) == TASKS * 2
    settings = SamplingSettings(max_new_tokens=8, temperature=0.0)
    wanted = await engine.generate(trajectories[0].token_ids[:6].tolist(), settings, request_id="r", weight_version="0")
    for trajectory in trajectories:
        assert isinstance(trajectory.outcome, Scored)
        assert trajectory.engine == "openai"
        assert trajectory.oldest_version == 0
        assert tuple(trajectory.token_ids[6:].tolist()) == wanted.token_ids
        assert trajectory.logprobs.tolist() == pytest.approx(wanted.logprobs, abs=1e-5)
    assert await metric(pod.port, "trajectories_total", outcome="scored") == TASKS * 2
    assert await metric(pod.port, "tokens_total", producer="model") == TASKS * 2 * 8
    assert await metric(pod.port, "weight_version", policy=POLICY) == 0

    members = KeyValue(bus, site.topology.members)
    heartbeat = decode((await members.get(escape_token("w0"), deadline_s=60.0)).value, MemberHeartbeat)
    assert (heartbeat.engine, heartbeat.versions) == ("openai", {POLICY: 0})

    pointers = await KeyValue.declare(bus, site.topology.weights, deadline_s=60.0)
    pointer = WeightPointer(
        job=site.job, policy=POLICY, version=2, epoch=1, manifest_key="m", manifest_digest="sha256:" + "0" * 64,
        size_bytes=1, published_at=1.0,
    )  # fmt: skip
    await pointers.put(POLICY, encode(pointer), deadline_s=60.0)

    async def takes_nothing() -> bool:
        return await metric(pod.port, "allowance") == 0

    await eventually(takes_nothing, timeout_s=20.0)
    await eventually(lambda: "weights_stay_as_they_are" in site.log("w0").read_text(), timeout_s=5.0)
    said = [line["event"] for line in site.lines("w0")]
    assert said.count("weights_stay_as_they_are") == 1
    assert KEY not in site.log("w0").read_text()
