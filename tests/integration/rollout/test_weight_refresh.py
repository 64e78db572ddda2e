"""Weights reach a serving engine through a real store and bus, and a killed engine comes back with the right ones."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.integration.rollout.engine_process import EngineProcess
from tests.integration.rollout.job import GROUP_SIZE, Job, working
from tests.polling import eventually
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.trajectory import Scored, Trajectory
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.rollout.engines.client import EngineClient, SamplingSettings
from trimtab.rollout.pace import Announcements
from trimtab.rollout.sampler import PolicySampler
from trimtab.rollout.version_gate import VersionGate
from trimtab.rollout.weight_refresh import WeightRefresh
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Role, Tokenizer
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import WeightPuller
from trimtab.weights.source import SafetensorsFile
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

D = 20.0
SIGNER = Signer.generate()
RULES = UpkeepRules(
    anchor_every=100, fold_every=None, collection=CollectionRules(keep_versions=50, lease_ttl_s=600.0, grace_s=600.0)
)


@dataclass
class Seat:
    """A policy on an engine, with what keeps its weights fresh."""

    job: Job
    store: ObjectStore
    pointers: KeyValue
    gate: VersionGate
    announcements: Announcements
    sampler: PolicySampler
    refresh: WeightRefresh
    models: Path

    scratch: Path
    closing: AsyncExitStack

    async def publisher(self) -> WeightPublisher:
        publisher = await WeightPublisher.open(
            self.store, self.pointers, job=self.job.topology.job, policy="solver", signer=SIGNER, rules=RULES,
            folder=self.scratch / uuid.uuid4().hex, clock=lambda: 1.0, deadline_s=D,
        )  # fmt: skip
        self.closing.push_async_callback(publisher.close)
        return publisher

    async def publish(self, publisher: WeightPublisher, version: int, *, model: Path | None = None) -> None:
        """Version v has the weights of seed v modulo 3."""
        file = SafetensorsFile((model or self.models / str(version % 3)) / "model.safetensors")
        await publisher.publish(version, publisher.capture(file), deadline_s=D)

    def roles(self) -> Mapping[str, Role]:
        tokenizer = AutoTokenizer.from_pretrained(self.models / "0")
        text = Tokenizer(
            encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            decode=lambda ids: str(tokenizer.decode(ids)),
        )
        settings = SamplingSettings(max_new_tokens=40)
        return {"solver": Role(name="solver", policy="solver", tokenizer=text, sampler=self.sampler, sampling=settings)}


Sit = Callable[[str], AbstractAsyncContextManager[Seat]]


@pytest.fixture
def seats(bus: Bus, object_store_settings: ObjectStoreSettings, models: Path, tmp_path: Path) -> Sit:
    @asynccontextmanager
    async def sit(url: str) -> AsyncIterator[Seat]:
        job = await Job.open(bus)
        pointers = await KeyValue.declare(bus, job.topology.weights, deadline_s=D)
        settings = object_store_settings.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})
        async with ObjectStore(settings) as store, EngineClient(url, request_timeout_s=30.0) as engine:
            gate = VersionGate(0)
            announcements = Announcements(clock=time.monotonic)
            sampler = PolicySampler(engine, gate)
            puller = WeightPuller(
                store, "solver", Verifier([SIGNER.public_text]), folder=tmp_path / "copy", spool=tmp_path / "spool",
                member="worker",
            )  # fmt: skip
            await puller.open()
            refresh = WeightRefresh(
                engine,
                gate,
                sampler,
                puller,
                pointers,
                announcements,
                policy="solver",
                base_model=models / "0",
                engine_start_timeout_s=60.0,
            )
            run = asyncio.create_task(refresh.run())
            async with AsyncExitStack() as closing:
                closing.push_async_callback(puller.close)
                try:
                    yield Seat(job, store, pointers, gate, announcements, sampler, refresh, models, tmp_path, closing)
                finally:
                    run.cancel()
                    await asyncio.gather(run, return_exceptions=True)

    return sit


@pytest.fixture(scope="module")
def references(models: Path) -> list[PreTrainedModel]:
    return [AutoModelForCausalLM.from_pretrained(models / str(seed), dtype=torch.float32) for seed in range(3)]


def assert_sampled_with_their_versions(trajectory: Trajectory, references: list[PreTrainedModel]) -> None:
    """Recompute every model token with the weights that its span names."""
    tokens = torch.tensor([trajectory.token_ids.tolist()])
    logprobs = trajectory.token_logprobs()
    position = 0
    for span in trajectory.spans:
        if span.version is not None:
            with torch.inference_mode():
                expected = torch.log_softmax(references[span.version % 3](tokens).logits[0], dim=-1)
            for at in range(position, position + span.length):
                assert logprobs[at] == pytest.approx(expected[at - 1, tokens[0, at]].item(), abs=1e-3)
        position += span.length


def _serves(seat: Seat, version: int) -> bool:
    return seat.gate.version == version


async def test_the_newest_version_is_served_from_the_start_and_followed(
    seats: Sit, engine_process: EngineProcess, references: list[PreTrainedModel]
) -> None:
    async with seats(engine_process.url) as seat:
        await asyncio.wait_for(seat.refresh.ready.wait(), 60.0)
        assert seat.gate.version == 0
        publisher = await seat.publisher()
        await seat.publish(publisher, 0)  # a process compiles its codec with the first version
        await seat.job.issue(6)
        worker = seat.job.worker(SingleTurn(), seat.roles(), max_tasks=2)
        async with working(worker):
            for version in range(1, 6):
                await seat.publish(publisher, version)
                await eventually(partial(_serves, seat, version), timeout_s=20.0, interval_s=0.01)
            # A quick engine may have been through with the others before the first swap.
            await seat.job.issue(1, task_id="last", prompt_id="last")
            await eventually(lambda: worker.completed == 7 * GROUP_SIZE, timeout_s=40.0)
        trajectories = await seat.job.trajectories()
        assert len(trajectories) == 7 * GROUP_SIZE
        for trajectory in trajectories:
            assert isinstance(trajectory.outcome, Scored)
            assert_sampled_with_their_versions(trajectory, references)
        versions = {span.version for t in trajectories for span in t.spans if span.version is not None}
        assert len(versions) > 1


async def test_an_engine_that_is_killed_and_restarted_gets_the_present_weights_before_it_counts_again(
    seats: Sit, engine_process: EngineProcess, references: list[PreTrainedModel]
) -> None:
    async with seats(engine_process.url) as seat:
        publisher = await seat.publisher()
        await seat.publish(publisher, 4)
        await eventually(lambda: seat.gate.version == 4 and seat.refresh.ready.is_set(), timeout_s=60.0)
        await seat.job.issue(8)
        worker = seat.job.worker(SingleTurn(), seat.roles(), max_tasks=2)
        async with working(worker):
            await eventually(lambda: seat.gate.in_flight > 0, timeout_s=20.0, interval_s=0.002)
            engine_process.kill()
            await eventually(lambda: seat.sampler.lost.is_set() or worker.completed > 0, timeout_s=20.0)
            engine_process.start()  # with the weights it was started with, which are version 0
            await eventually(lambda: worker.completed == 8 * GROUP_SIZE, timeout_s=90.0)
        trajectories = await seat.job.trajectories()
        assert len(trajectories) == 8 * GROUP_SIZE
        for trajectory in trajectories:
            assert isinstance(trajectory.outcome, Scored)
            assert (trajectory.oldest_version, trajectory.newest_version) == (4, 4)
            assert_sampled_with_their_versions(trajectory, references)


async def test_a_word_of_a_superseded_trainer_and_a_damaged_pointer_are_not_followed(
    seats: Sit, engine_process: EngineProcess
) -> None:
    async with seats(engine_process.url) as seat:
        older, newer = await seat.publisher(), await seat.publisher()
        await seat.publish(newer, 2)
        await eventually(lambda: seat.gate.version == 2 and seat.refresh.ready.is_set(), timeout_s=60.0)
        present = decode((await seat.pointers.get("solver", deadline_s=D)).value, WeightPointer)
        stale = WeightPointer(
            job=present.job, policy="solver", version=9, epoch=older.epoch, manifest_key=present.manifest_key,
            manifest_digest=present.manifest_digest, size_bytes=1, published_at=1.0,
        )  # fmt: skip
        await seat.pointers.put("solver", encode(stale), deadline_s=D)
        await seat.pointers.put("solver", b"damaged", deadline_s=D)
        await seat.pointers.put("solver", encode(present), deadline_s=D)
        await seat.publish(newer, 3)
        await eventually(lambda: seat.gate.version != 2, timeout_s=20.0)
        assert seat.gate.version == 3


async def test_a_version_that_cannot_be_loaded_leaves_the_old_one_serving_until_a_good_one_comes(
    seats: Sit, engine_process: EngineProcess, references: list[PreTrainedModel]
) -> None:
    async with seats(engine_process.url) as seat:
        await seat.publish(await seat.publisher(), 1)
        await eventually(lambda: seat.gate.version == 1 and seat.refresh.ready.is_set(), timeout_s=60.0)
        (seat.scratch / "other").mkdir()
        save_file({"of_another_model": torch.zeros(3)}, seat.scratch / "other" / "model.safetensors")
        await seat.publish(await seat.publisher(), 2, model=seat.scratch / "other")
        await eventually(lambda: seat.announcements.newest == 2, timeout_s=20.0)
        settings = SamplingSettings(max_new_tokens=30, seed=1)
        for number in range(5):
            completion = await seat.sampler.complete([1, 2, 3], settings, request_id=f"x{number}", deadline_s=D)
            assert {span.version for span in completion.spans} == {1}
        await seat.publish(await seat.publisher(), 3)
        await eventually(lambda: seat.gate.version == 3, timeout_s=20.0)


@asynccontextmanager
async def late_requests(url: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A proxy that holds every /generate back until a pause has been answered: a request that was still on its way."""
    paused = asyncio.Event()

    async def forward(request: web.Request) -> web.Response:
        if request.path == "/generate":
            await asyncio.wait_for(paused.wait(), D)
        async with session.request(request.method, request.path, data=await request.read()) as response:
            answer = web.Response(
                status=response.status, body=await response.read(), content_type=response.content_type
            )
        if request.path == "/pause_generation":
            paused.set()
        return answer

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", forward)
    async with aiohttp.ClientSession(base_url=url) as session, TestServer(application) as server:
        yield str(server.make_url("/")), paused


async def test_a_request_that_reaches_the_engine_after_the_pause_does_not_hold_up_the_swap(
    seats: Sit, engine_process: EngineProcess
) -> None:
    async with late_requests(engine_process.url) as (url, paused), seats(url) as seat:
        await asyncio.wait_for(seat.refresh.ready.wait(), 60.0)
        paused.clear()
        settings = SamplingSettings(max_new_tokens=40, seed=1)
        completion = asyncio.create_task(seat.sampler.complete([1, 2], settings, request_id="late", deadline_s=D))
        await eventually(lambda: seat.gate.in_flight == 1, timeout_s=10.0)
        await seat.publish(await seat.publisher(), 1)
        await eventually(lambda: seat.gate.version == 1, timeout_s=10.0)
        assert len((await completion).token_ids) == 40
