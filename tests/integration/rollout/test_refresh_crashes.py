"""A worker that is killed at any step of a swap leaves its engine on one version or the other; its successor goes on
from there.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from tests.support.rollout.refresh_worker import Refresher, Step
from tests.support.rollout.served_policies import SIGNER, D, WeightsOfJob, own_part, reset, weights_of
from tests.support.rollout.weighed import Weighed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings


@pytest.fixture
async def weights(
    bus: Bus, object_store_settings: ObjectStoreSettings, engine_process: EngineProcess, models: Path, tmp_path: Path
) -> AsyncIterator[WeightsOfJob]:
    async with weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights:
        yield weights


@pytest.mark.parametrize(
    "step", [step if step is Step.COMMITTED else pytest.param(step, marks=pytest.mark.slow) for step in Step]
)
async def test_killed_at_a_step_of_a_swap(
    step: Step,
    weights: WeightsOfJob,
    nats_settings: NatsSettings,
    engine_process: EngineProcess,
    models: Path,
    steps: Mapping[int, Path],
) -> None:
    url = engine_process.url
    await reset(engine_process, models)
    weighed = Weighed(url)
    checksums = {f"1.{version}": await weighed.checksum_of(steps[version]) for version in (1, 2)}
    await reset(engine_process, models)
    publisher = await weights.publisher()
    async with weights.worker_policy(url) as served_policy:
        await weights.publish(publisher, 1, model=steps[1])
        await eventually(lambda: served_policy.gate.version == 1, timeout_s=D)
    await weights.publish(publisher, 2, model=steps[2])

    refresher = Refresher(
        nats=nats_settings,
        objects=weights.settings,
        topology=weights.job.topology,
        public_key=SIGNER.public_text,
        models=models,
        scratch=weights.scratch,
        url=url,
        step=step,
    )
    child = multiprocessing.get_context("spawn").Process(target=refresher.run)
    child.start()
    await eventually(lambda: not child.is_alive(), timeout_s=60.0)
    assert child.exitcode == -signal.SIGKILL

    async with EngineClient(url, request_timeout_s=D) as engine:
        label, checksum, after = "", "", "unknown"
        # What it was given may arrive after the death of who gave it, and so between two looks.
        while label != after:
            label = (await engine.model_info(timeout_s=D)).weight_version
            checksum = await weighed.checksum()
            after = (await engine.model_info(timeout_s=D)).weight_version
    if step is not Step.GIVING:
        assert label == ("1.2" if step is Step.GIVEN else "1.1")
    assert checksum == checksums[label]

    async with weights.worker_policy(url) as served_policy:
        await eventually(lambda: served_policy.gate.version == 2 and served_policy.refresh.ready.is_set(), timeout_s=D)
        assert await weighed.checksum() == checksums["1.2"]
        settings = SamplingSettings(max_new_tokens=5, seed=1)
        completion = await served_policy.sampler.complete([1, 2], settings, request_id="after", deadline_s=D)
        assert {span.version for span in completion.spans} == {2}
