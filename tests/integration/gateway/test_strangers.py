"""Agents that nobody here wrote, on a real engine whose weights are swapped every second and which is killed now and
then: what is trained is what a tap before the engine heard, token by token.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gateway import strangers
from tests.support.gateway.agent_environment import agents_packages, agents_python
from tests.support.gateway.chat_model import write_model
from tests.support.gateway.engine_tap import EngineTap
from tests.support.rollout.beside import beside
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from tests.support.rollout.served_policies import WeightsOfJob, own_part, weights_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.gateway import running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.worker.served_policy import ServedPolicy
from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.forest import Row, forest_of
from trimtab.rollout.workflows.team import Assignment, Team, Workflow
from trimtab.rollout.workflows.verifiers_environment import EnvironmentFailed, VerifiersEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

EPISODES = 3
SWAP_S, KILL_S = 1.0, 10.0
DEADLINE_S = 600.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `0`, `1` and `2`, as WeightsOfJob publishes them."""
    folder = tmp_path_factory.mktemp("models")
    for seed in range(3):
        write_model(folder / str(seed), seed=seed)
    return folder


@pytest.fixture
def engine(models: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(models / "0", tmp_path)
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def weights(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, models: Path, tmp_path: Path
) -> AsyncIterator[WeightsOfJob]:
    async with (
        await Bus.connect(nats_settings, name="test") as bus,
        weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as made,
    ):
        yield made


async def swap(weights: WeightsOfJob) -> None:
    publisher = await weights.publisher()
    for version in itertools.count(1):
        await weights.publish(publisher, version)
        await asyncio.sleep(SWAP_S)


async def kill(engine: EngineProcess, deaths: list[float]) -> None:
    while True:
        await asyncio.sleep(KILL_S)
        engine.kill()
        deaths.append(time.monotonic())
        engine.start()
        await engine.serves()


@asynccontextmanager
async def team_of(served: ServedPolicy[EngineClient], task: Assignment) -> AsyncIterator[Team]:
    role = replace(served.role("solver"), sampling=SamplingSettings(max_new_tokens=1024))
    metrics = GatewayMetrics(Metrics())
    async with running_gateway(roles=("solver",), metrics=metrics, clock=time.monotonic) as gateway:
        yield Team({"solver": role}, task, gateway=gateway)


def command(name: str, folder: Path) -> Workflow:
    """Always worth something: what was said is looked at, not what it is worth."""
    (folder / "stranger.py").write_text(strangers.COMMANDS[name])
    agent = ExternalAgent(
        command=[str(agents_python()), "stranger.py"],
        reward="tests.support.gateway.rewards:one",
        time_limit_s=DEADLINE_S,
    )
    agent.read_from(folder)
    return agent


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workflow:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "guessing_game.py").write_text(strangers.VERIFIERS)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "source"), *sys.path, str(agents_packages())])
    return VerifiersEnvironment(environment="guessing_game")


@pytest.mark.parametrize("name", strangers.COMMANDS)
async def test_a_command_is_trained_on_what_the_engine_said(
    name: str, engine: EngineProcess, weights: WeightsOfJob, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    await check(command(name, tmp_path / "source"), engine, weights, rewrites=name == "smolagents")


async def test_an_environment_of_verifiers_is_trained_on_what_the_engine_said(
    environment: Workflow, engine: EngineProcess, weights: WeightsOfJob
) -> None:
    await check(environment, engine, weights)


async def check(workflow: Workflow, engine: EngineProcess, weights: WeightsOfJob, *, rewrites: bool = False) -> None:
    tap = EngineTap()
    await engine.serves()
    rows: list[Row] = []
    deaths: list[float] = []
    episodes = attempts = untrained = 0
    async with (
        tap.before(engine.url) as url,
        weights.worker_policy(url) as served,
        beside(swap(weights)),
        beside(kill(engine, deaths)),
    ):
        # Until the engine has died between two of them, or within one.
        while episodes < EPISODES or not deaths or tap.lost == 0:
            task = Assignment(prompt=strangers.PROMPT, seed=attempts, request_id=f"t.{attempts}", deadline_s=DEADLINE_S)
            attempts += 1
            before = served.sampler.sampled_tokens
            try:
                async with team_of(served, task) as team:
                    episode = await workflow.run(task, team)
            except EnvironmentFailed as failure:
                # A model that knows nothing may say nothing, which verifiers takes for an error of the episode.
                if "EmptyModelResponseError" not in str(failure):
                    raise
                untrained += served.sampler.sampled_tokens - before
                continue
            rows += forest_of("solver", episode.scored).rows
            episodes += 1
        sampled = served.sampler.sampled_tokens
    assert tap.check(rows) == sampled - untrained
    assert sum(len(row.turns) for row in rows) >= 3 * episodes
    # A conversation whose words come back as they were said is one row. An answer without a word need not come back.
    silent = sum(turn.tokens <= 1 for row in rows for turn in row.turns)
    assert episodes <= len(rows) <= episodes + silent or rewrites
    assert len({span.version for row in rows for span in row.spans if span.version is not None}) > 1
