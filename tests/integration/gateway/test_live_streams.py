"""Streams through the gateway from the built-in engine: pieces come while the rest is sampled, and whatever happens to
the engine, an agent is told every token once, and the row that is trained has the same ones.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.gateway.live_models import make_talkative_models
from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.speakers import assignment
from trimtab.fabric.metrics import Metrics
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import PauseMode, SamplingSettings
from trimtab.rollout.gateway.gateway import running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate, label_of
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.forest import Row, forest_of
from trimtab.rollout.workflows.team import AgentEndpoint, Role, Team
from trimtab.weights.store.position import Position

D = 60.0
LENGTH = 600
PROMPT = "1,2,3>"


@dataclass(frozen=True)
class Site:
    """One episode with a policy on a real engine."""

    engine: EngineClient
    gate: VersionGate
    endpoint: AgentEndpoint
    tokenizer: Tokenizer
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    def row(self) -> Row:
        (row,) = forest_of("solver", list(self.endpoint.scored(1.0))).rows
        return row

    def said(self) -> str:
        """What is trained, as text."""
        row, at, tokens = self.row(), 0, list[int]()
        for span in row.spans:
            tokens += row.token_ids[at : at + span.length] if span.version is not None else ()
            at += span.length
        return self.tokenizer.decode(tokens)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talkative")
    make_talkative_models(folder)
    return folder


@pytest.fixture(scope="module")
def process(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(models / "0", tmp_path_factory.mktemp("engine"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def site(process: EngineProcess, models: Path) -> AsyncIterator[Site]:
    await process.serves()
    async with EngineClient(process.url, request_timeout_s=300.0) as engine, _site(engine, models) as site:
        await engine.update_weights_from_disk(models / "0", weight_version="0", timeout_s=D)
        await engine.resume(timeout_s=D)
        yield site


_EPISODE_S = 600.0
"""A busy machine takes minutes to start an engine again."""


@asynccontextmanager
async def _site(engine: EngineClient, models: Path) -> AsyncIterator[Site]:
    gate = VersionGate()
    tokenizer = Tokenizer.read(models / "0")
    sampling = SamplingSettings(max_new_tokens=LENGTH)
    roles = {"solver": Role("solver", "solver", tokenizer, PolicySampler(engine, gate), sampling)}
    metrics = GatewayMetrics(Metrics())
    async with running_gateway(roles=("solver",), metrics=metrics, clock=time.monotonic) as gateway:
        team = Team(roles, replace(assignment(), deadline_s=_EPISODE_S), gateway=gateway)
        async with (
            team.endpoint() as endpoint,
            openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key, timeout=600) as by_openai,
            anthropic.AsyncAnthropic(base_url=endpoint.url, api_key=endpoint.key, timeout=600) as by_anthropic,
        ):
            yield Site(engine, gate, endpoint, tokenizer, by_openai, by_anthropic)


async def streamed(site: Site, happening: Callable[[], Awaitable[None]]) -> str:
    """All that an agent is told, of which something happens after the first word."""
    stream: Any = await site.openai.completions.create(model="solver", prompt=PROMPT, max_tokens=LENGTH, stream=True)
    told: list[str] = []
    async for chunk in stream:
        first = not told and bool(chunk.choices[0].text)
        told += [chunk.choices[0].text] if chunk.choices[0].text else []
        if first:
            await happening()
    return "".join(told)


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("in_place", "abort")), "retract"]
)
async def test_the_first_words_are_there_before_the_last_are_sampled_and_a_pause_is_not_noticed(
    site: Site, mode: PauseMode
) -> None:
    async def pause() -> None:
        assert site.gate.in_flight == 1, "there is more to come"
        await site.engine.pause(mode, timeout_s=D)
        await site.engine.resume(timeout_s=D)

    told = await streamed(site, pause)
    assert len(told) == LENGTH
    assert told == site.said()


async def test_an_engine_that_is_killed_and_started_again_is_not_noticed(site: Site, process: EngineProcess) -> None:
    async def kill() -> None:
        await site.engine.pause("in_place", timeout_s=D)
        process.kill()
        process.start()

    told = await streamed(site, kill)
    assert len(told) == LENGTH
    assert told == site.said()


async def test_weights_that_come_every_moment_are_not_noticed_and_every_token_has_its_own(
    site: Site, models: Path
) -> None:
    async def swap() -> None:
        for version in range(1, 4):
            position = Position(epoch=1, version=version)
            site.gate.begin(position)
            folder = models / str(version % 3)
            await site.engine.update_weights_from_disk(folder, weight_version=label_of(position), timeout_s=D)
            site.gate.settle(position)

    told = await streamed(site, swap)
    assert len(told) == LENGTH
    assert told == site.said()
    versions = [span.version for span in site.row().spans if span.version is not None]
    assert versions == sorted(versions)
    assert len(versions) > 1


async def test_an_agent_that_leaves_its_stream_takes_the_request_with_it(site: Site) -> None:
    await site.engine.pause("in_place", timeout_s=D)
    await site.engine.resume(timeout_s=D)
    stream: Any = await site.openai.completions.create(model="solver", prompt=PROMPT, max_tokens=LENGTH, stream=True)
    async for chunk in stream:
        if chunk.choices[0].text:
            break
    await stream.close()

    async def idle() -> bool:
        load = await site.engine.load(timeout_s=D)
        return load.running + load.waiting == 0

    await eventually(lambda: site.gate.in_flight == 0, timeout_s=30.0)
    await eventually(idle, timeout_s=30.0)


async def test_both_libraries_gather_a_stream_into_the_answer_that_is_trained(site: Site) -> None:
    messages: Any = [{"role": "user", "content": "1,2"}]
    parts: list[str] = []
    stream = await site.openai.chat.completions.create(model="solver", messages=messages, max_tokens=80, stream=True)
    async for chunk in stream:
        parts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    assert len(parts) > 1
    chat = "".join(parts)
    messages += [{"role": "assistant", "content": chat}, {"role": "user", "content": "3"}]
    async with site.anthropic.messages.stream(model="solver", messages=messages, max_tokens=80) as more:
        words = [text async for text in more.text_stream]
    assert len(words) > 1
    assert chat + "".join(words) == site.said()
