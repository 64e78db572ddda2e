"""Agents ask through the gateway, streaming and not, while weights are swapped every second and the engine is killed:
they notice nothing, and what is trained is what an ear before the engine heard, token by token.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.gateway.engine_tap import EngineTap
from tests.support.gateway.live_models import make_talkative_models
from tests.support.polling import eventually, within
from tests.support.rollout.beside import beside
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from tests.support.rollout.served_policies import D, WeightsOfJob, own_part, weights_of
from tests.support.sizes import AgentStorm, Sizes
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.metrics import Metrics
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.gateway import Gateway, running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.workflows.forest import Row, forest_of
from trimtab.rollout.workflows.team import Assignment, Role, Team

LENGTH = 120
MOST_TOKENS = 1500


@pytest.mark.slow
async def test_agents_notice_nothing_and_what_is_trained_is_what_the_engine_sampled(
    sizes: Sizes, tmp_path: Path
) -> None:
    storm = sizes.agent_storm
    make_talkative_models(tmp_path / "models")
    # So few at once that agents are turned away now and then.
    process = EngineProcess(tmp_path / "models" / "0", tmp_path, max_running=3, max_queued=3)
    process.start()
    tap = EngineTap()
    try:
        await process.serves()
        async with (
            _weights(tmp_path) as weights,
            tap.before(process.url) as url,
            weights.worker_policy(url) as served,
            running_gateway(roles=("solver",), metrics=GatewayMetrics(Metrics()), clock=time.monotonic) as gateway,
        ):
            await within(served.refresh.ready.wait(), D)
            sampling = SamplingSettings(max_new_tokens=LENGTH)
            roles = {"solver": replace(served.role("solver"), sampling=sampling)}
            over = asyncio.Event()
            async with beside(_swap(weights, storm)), beside(_kill(process, storm)):
                agents = [asyncio.create_task(_agent(number, roles, gateway, over)) for number in range(storm.agents)]
                await asyncio.sleep(storm.seconds)
                await eventually(lambda: served.gate.version > 1 and tap.broken > 0, timeout_s=60.0)
                over.set()
                episodes = await within(asyncio.gather(*agents), 60.0)
    finally:
        process.kill()
    trained = 0
    for rows, told in episodes:
        trained += tap.check(rows)
        assert _turns(rows, served.tokenizer.decode) == Counter(told)
    assert trained == sum(len(text) for _, told in episodes for text in told), "a character is a token"
    assert tap.answers > 0
    assert tap.streams > 0
    versions = {span.version for rows, _ in episodes for row in rows for span in row.spans if span.version is not None}
    assert len(versions) > 1


async def _agent(
    number: int, roles: dict[str, Role], gateway: Gateway, over: asyncio.Event
) -> tuple[tuple[Row, ...], list[str]]:
    """One episode after the other, of chats or of texts: all rows, and all that the agent was told."""
    rows: list[Row] = []
    told: list[str] = []
    episode = 0
    while not over.is_set():
        task = Assignment(prompt={}, seed=number, request_id=f"a{number}.{episode}", deadline_s=600.0)
        team = Team(roles, task, gateway=gateway)
        async with (
            team.endpoint() as endpoint,
            openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key, timeout=600) as client,
        ):
            talk = _chat if number % 4 < 2 else _write
            told += await talk(client, f"{number},{episode}", streams=number % 2 == 0, over=over)
            rows += forest_of("solver", list(endpoint.scored(1.0))).rows
        episode += 1
    return tuple(rows), told


async def _chat(client: openai.AsyncOpenAI, opening: str, *, streams: bool, over: asyncio.Event) -> list[str]:
    messages: Any = [{"role": "user", "content": opening}]
    told: list[str] = []
    while not over.is_set() and sum(len(message["content"]) for message in messages) < MOST_TOKENS:
        if streams:
            parts = []
            async for chunk in await client.chat.completions.create(model="solver", messages=messages, stream=True):
                parts += [choice.delta.content or "" for choice in chunk.choices]
            text = "".join(parts)
        else:
            answer = await client.chat.completions.create(model="solver", messages=messages)
            text = answer.choices[0].message.content or ""
        told.append(text)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and 7"}]
    return told


async def _write(client: openai.AsyncOpenAI, opening: str, *, streams: bool, over: asyncio.Event) -> list[str]:
    prompt = f"{opening}>"
    told: list[str] = []
    while not over.is_set() and len(prompt) < MOST_TOKENS:
        ask: Any = {"model": "solver", "prompt": prompt, "max_tokens": LENGTH}
        if streams:
            parts = []
            async for chunk in await client.completions.create(**ask, stream=True):
                parts += [choice.text for choice in chunk.choices]
            text = "".join(parts)
        else:
            text = (await client.completions.create(**ask)).choices[0].text
        told.append(text)
        prompt += f"{text}7>"
    return told


async def _swap(weights: WeightsOfJob, storm: AgentStorm) -> None:
    publisher = await weights.publisher()
    version = 0
    while True:
        version += 1
        await weights.publish(publisher, version)
        await asyncio.sleep(storm.swap_every_s)


async def _kill(process: EngineProcess, storm: AgentStorm) -> None:
    while True:
        await asyncio.sleep(storm.kill_every_s)
        process.kill()
        process.start()
        await process.serves()


@asynccontextmanager
async def _weights(folder: Path) -> AsyncIterator[WeightsOfJob]:
    with EmbeddedNats(folder / "nats") as nats, EmbeddedSeaweed(folder / "store") as store:
        async with (
            await Bus.connect(nats.settings, name="test") as bus,
            weights_of(await Job.open(bus), own_part(store.settings), folder / "models", folder / "scratch") as weights,
        ):
            yield weights


def _turns(rows: tuple[Row, ...], decode: Any) -> Counter[str]:
    """What the policy said in each turn, as text."""
    said: Counter[str] = Counter()
    for row in rows:
        at = 0
        turn: list[int] = []
        for span in row.spans:
            if span.version is None and turn:
                said[decode(turn)] += 1
                turn = []
            elif span.version is not None:
                turn += row.token_ids[at : at + span.length]
            at += span.length
        said[decode(turn)] += 1
    return said
