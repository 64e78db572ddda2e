"""Weights reach a serving engine through a real store and bus, and a killed engine comes back with the right ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from aiohttp import web
from safetensors.torch import save_file

from tests.support.polling import eventually, within
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.engine_proxy import Forward, engine_behind
from tests.support.rollout.job import GROUP_SIZE, Job, working
from tests.support.rollout.served_policies import D, WeightsOfJob, own_part, reset, roles_of, weights_of
from tests.support.rollout.token_reference import TokenReference
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.trajectory import Scored
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.worker.served_policy import ServedPolicy
from trimtab.rollout.workflows.single_turn import SingleTurn

Serve = Callable[[str], AbstractAsyncContextManager["ServedJob"]]


@dataclass
class ServedJob:
    """A policy on an engine, with the weights of its job."""

    weights: WeightsOfJob
    policy: ServedPolicy[EngineClient]

    @property
    def job(self) -> Job:
        return self.weights.job

    @property
    def gate(self) -> VersionGate:
        return self.policy.gate

    @property
    def ready(self) -> asyncio.Event:
        return self.policy.refresh.ready


@pytest.fixture
def served_policies(
    bus: Bus, object_store_settings: ObjectStoreSettings, engine_process: EngineProcess, models: Path, tmp_path: Path
) -> Serve:
    @asynccontextmanager
    async def serve(url: str) -> AsyncIterator[ServedJob]:
        await reset(engine_process, models)
        async with (
            weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights,
            weights.worker_policy(url) as policy,
        ):
            yield ServedJob(weights, policy)

    return serve


@pytest.fixture(scope="module")
def reference(models: Path) -> TokenReference:
    return TokenReference({version: models / str(version % 3) for version in range(10)})


def _serves(served_policy: ServedJob, version: int) -> bool:
    return served_policy.gate.version == version


async def test_the_newest_version_is_served_from_the_start_and_followed(
    served_policies: Serve, engine_process: EngineProcess, reference: TokenReference
) -> None:
    async with served_policies(engine_process.url) as served_policy:
        await within(served_policy.ready.wait(), 60.0)
        assert served_policy.gate.version == 0
        publisher = await served_policy.weights.publisher()
        await served_policy.weights.publish(publisher, 0)  # a process compiles its codec with the first version
        await served_policy.job.issue(6)
        worker = served_policy.job.worker(SingleTurn(), roles_of(served_policy.policy), max_tasks=2)
        async with working(worker):
            for version in range(1, 6):
                await served_policy.weights.publish(publisher, version)
                await eventually(partial(_serves, served_policy, version), timeout_s=20.0, interval_s=0.01)
            # A quick engine may have been through with the others before the first swap.
            await served_policy.job.issue(1, task_id="last", prompt_id="last")
            await eventually(lambda: worker.completed == 7 * GROUP_SIZE, timeout_s=40.0)
        trajectories = await served_policy.job.trajectories()
        assert len(trajectories) == 7 * GROUP_SIZE
        for trajectory in trajectories:
            assert isinstance(trajectory.outcome, Scored)
            reference.check(trajectory)
        versions = {span.version for t in trajectories for span in t.spans if span.version is not None}
        assert len(versions) > 1


async def test_in_a_job_that_resumes_another_the_models_own_weights_are_no_version(
    bus: Bus, object_store_settings: ObjectStoreSettings, engine_process: EngineProcess, models: Path, tmp_path: Path
) -> None:
    """Version 0 is what its trainer publishes first; until then the engine is not ready for anything."""
    await reset(engine_process, models)
    async with (
        weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights,
        weights.worker_policy(engine_process.url, resumed=True) as policy,
        EngineClient(engine_process.url, request_timeout_s=D) as engine,
    ):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(policy.refresh.ready.wait(), 2.0)
        publisher = await weights.publisher()
        await weights.publish(publisher, 0, model=models / "1")
        await within(policy.refresh.ready.wait(), 60.0)
        assert policy.gate.version == 0
        info = await engine.model_info(timeout_s=D)
        assert info.weight_version == f"{publisher.epoch}.0"


async def test_an_engine_that_is_killed_and_restarted_gets_the_present_weights_before_it_counts_again(
    served_policies: Serve, engine_process: EngineProcess, reference: TokenReference
) -> None:
    async with served_policies(engine_process.url) as served_policy:
        publisher = await served_policy.weights.publisher()
        await served_policy.weights.publish(publisher, 4)
        await eventually(lambda: served_policy.gate.version == 4 and served_policy.ready.is_set(), timeout_s=60.0)
        await served_policy.job.issue(8)
        worker = served_policy.job.worker(SingleTurn(), roles_of(served_policy.policy), max_tasks=2)
        async with working(worker):
            await eventually(lambda: served_policy.gate.in_flight > 0, timeout_s=20.0, interval_s=0.002)
            engine_process.kill()
            await eventually(lambda: served_policy.policy.sampler.lost.is_set() or worker.completed > 0, timeout_s=20.0)
            engine_process.start()  # with the weights it was started with, which are version 0
            await eventually(lambda: worker.completed == 8 * GROUP_SIZE, timeout_s=90.0)
        trajectories = await served_policy.job.trajectories()
        assert len(trajectories) == 8 * GROUP_SIZE
        for trajectory in trajectories:
            assert isinstance(trajectory.outcome, Scored)
            assert (trajectory.oldest_version, trajectory.newest_version) == (4, 4)
            reference.check(trajectory)


async def test_an_engine_that_is_killed_while_the_next_version_comes_goes_on_with_that_one(
    served_policies: Serve, engine_process: EngineProcess, reference: TokenReference
) -> None:
    async with served_policies(engine_process.url) as served_policy:
        publisher = await served_policy.weights.publisher()
        await served_policy.weights.publish(publisher, 4)
        await eventually(lambda: served_policy.gate.version == 4 and served_policy.ready.is_set(), timeout_s=60.0)
        await served_policy.job.issue(8)
        worker = served_policy.job.worker(SingleTurn(), roles_of(served_policy.policy), max_tasks=2)
        async with working(worker):
            # Aborted first, so that there are tokens of version 4 to be continued with version 5.
            await eventually(
                lambda: worker.completed > 0 and served_policy.gate.in_flight > 0, timeout_s=20.0, interval_s=0.002
            )
            await served_policy.policy.engine.pause("abort", timeout_s=D)
            engine_process.kill()
            await served_policy.weights.publish(publisher, 5)
            await eventually(lambda: served_policy.policy.announcements.newest == 5, timeout_s=20.0)
            engine_process.start()
            await eventually(lambda: worker.completed == 8 * GROUP_SIZE, timeout_s=90.0)
        trajectories = await served_policy.job.trajectories()
        assert len(trajectories) == 8 * GROUP_SIZE
        for trajectory in trajectories:
            assert isinstance(trajectory.outcome, Scored)
            assert {span.version for span in trajectory.spans} <= {None, 4, 5}
            reference.check(trajectory)
        assert {trajectory.newest_version for trajectory in trajectories} == {4, 5}


async def test_a_word_of_a_superseded_trainer_and_a_damaged_pointer_are_not_followed(
    served_policies: Serve, engine_process: EngineProcess
) -> None:
    async with served_policies(engine_process.url) as served_policy:
        older, newer = await served_policy.weights.publisher(), await served_policy.weights.publisher()
        await served_policy.weights.publish(newer, 2)
        await eventually(lambda: served_policy.gate.version == 2 and served_policy.ready.is_set(), timeout_s=60.0)
        present = decode((await served_policy.weights.pointers.get("solver", deadline_s=D)).value, WeightPointer)
        stale = WeightPointer(
            job=present.job, policy="solver", version=9, epoch=older.epoch, manifest_key=present.manifest_key,
            manifest_digest=present.manifest_digest, size_bytes=1, published_at=1.0,
        )  # fmt: skip
        await served_policy.weights.pointers.put("solver", encode(stale), deadline_s=D)
        await served_policy.weights.pointers.put("solver", b"damaged", deadline_s=D)
        await served_policy.weights.pointers.put("solver", encode(present), deadline_s=D)
        await served_policy.weights.publish(newer, 3)
        await eventually(lambda: served_policy.gate.version != 2, timeout_s=20.0)
        assert served_policy.gate.version == 3


async def test_a_version_that_cannot_be_loaded_leaves_the_old_one_serving_until_a_good_one_comes(
    served_policies: Serve, engine_process: EngineProcess, reference: TokenReference
) -> None:
    async with served_policies(engine_process.url) as served_policy:
        await served_policy.weights.publish(await served_policy.weights.publisher(), 1)
        await eventually(lambda: served_policy.gate.version == 1 and served_policy.ready.is_set(), timeout_s=60.0)
        (served_policy.weights.scratch / "other").mkdir()
        save_file({"of_another_model": torch.zeros(3)}, served_policy.weights.scratch / "other" / "model.safetensors")
        await served_policy.weights.publish(
            await served_policy.weights.publisher(), 2, model=served_policy.weights.scratch / "other"
        )
        await eventually(lambda: served_policy.policy.announcements.newest == 2, timeout_s=20.0)
        settings = SamplingSettings(max_new_tokens=30, seed=1)
        for number in range(5):
            completion = await served_policy.policy.sampler.complete(
                [1, 2, 3], settings, request_id=f"x{number}", deadline_s=D
            )
            assert {span.version for span in completion.spans} == {1}
        await served_policy.weights.publish(await served_policy.weights.publisher(), 3)
        await eventually(lambda: served_policy.gate.version == 3, timeout_s=20.0)


async def test_a_request_that_reaches_the_engine_after_the_pause_does_not_hold_up_the_swap(
    served_policies: Serve, engine_process: EngineProcess
) -> None:
    paused = asyncio.Event()

    async def late(request: web.Request, forward: Forward) -> web.Response:
        """Until a pause has been answered, every /generate is still on its way."""
        if request.path == "/generate":
            await within(paused.wait(), D)
        answer = await forward(request)
        if request.path == "/pause_generation":
            paused.set()
        return answer

    async with engine_behind(engine_process.url, late) as url, served_policies(url) as served_policy:
        await within(served_policy.ready.wait(), 60.0)
        paused.clear()
        settings = SamplingSettings(max_new_tokens=40, seed=1)
        completion = asyncio.create_task(
            served_policy.policy.sampler.complete([1, 2], settings, request_id="late", deadline_s=D)
        )
        await eventually(lambda: served_policy.gate.in_flight == 1, timeout_s=10.0)
        await served_policy.weights.publish(await served_policy.weights.publisher(), 1)
        await eventually(lambda: served_policy.gate.version == 1, timeout_s=10.0)
        assert len((await completion).token_ids) == 40
