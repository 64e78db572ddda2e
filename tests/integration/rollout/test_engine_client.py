"""Every call of the client, against the built-in engine as a process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from examples.quickstart.make import CHARACTERS
from tests.support.polling import eventually, within
from tests.support.rollout.engine_process import EngineProcess
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import (
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Generated,
    SamplingSettings,
)

D = 60.0
LONG = SamplingSettings(max_new_tokens=50, seed=5)
COMMA = CHARACTERS.index(",")


async def ask(
    engine: EngineClient, settings: SamplingSettings = LONG, *, request_id: str = "r", prompt: tuple[int, ...] = (1, 2)
) -> Generated:
    return await engine.generate(prompt, settings, request_id=request_id, weight_version="0")


@asynccontextmanager
async def held_requests(engine: EngineClient, *names: str) -> AsyncIterator[dict[str, asyncio.Task[Generated]]]:
    """Requests that the engine holds, without going on with them."""
    await engine.pause("in_place", timeout_s=D)
    requests = {name: asyncio.create_task(ask(engine, request_id=name)) for name in names}

    async def all_there() -> bool:
        load = await engine.load(timeout_s=D)
        return load.running + load.waiting == len(names)

    await eventually(all_there, timeout_s=D)
    yield requests
    await engine.resume(timeout_s=D)


@pytest.mark.parametrize("seed", range(5))
async def test_a_stop_text_ends_a_generation_and_its_tokens_are_part_of_it(engine: EngineClient, seed: int) -> None:
    free = await ask(engine, SamplingSettings(max_new_tokens=50, seed=seed))
    at = free.token_ids.index(COMMA)
    text = CHARACTERS[free.token_ids[at - 1]] + "," if at else ","
    stopped = await ask(engine, SamplingSettings(max_new_tokens=50, seed=seed, stop=(text, "never said")))
    assert stopped.finish == "stop"
    assert stopped.token_ids == free.token_ids[: at + 1]
    assert stopped.logprobs == pytest.approx(free.logprobs[: at + 1], abs=1e-4)


async def test_a_stop_token_ends_a_generation(engine: EngineClient) -> None:
    free = await ask(engine)
    stopped = await ask(engine, SamplingSettings(max_new_tokens=50, seed=5, stop_token_ids=(COMMA,)))
    assert stopped.finish == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(COMMA) + 1]


async def test_one_request_is_aborted_and_then_all(engine: EngineClient) -> None:
    async with held_requests(engine, "one", "two", "three") as requests:
        await engine.abort("two", timeout_s=D)
        await engine.abort("nobody", timeout_s=D)
        assert (await within(requests["two"], D)).finish == "abort"
        assert not requests["one"].done()
        await engine.abort_all(timeout_s=D)
        for request in requests.values():
            assert (await within(request, D)).finish == "abort"
    with pytest.raises(ValueError, match="abort_all"):
        await engine.abort("", timeout_s=D)


async def test_the_cache_is_flushed_only_when_nothing_is_held(engine: EngineClient) -> None:
    async with held_requests(engine, "held") as requests:
        with pytest.raises(EngineRefused, match="/flush_cache: 400"):
            await engine.flush_cache(timeout_s=D)
        flushing = asyncio.create_task(engine.flush_cache(wait_s=D, timeout_s=2 * D))
        await engine.resume(timeout_s=D)
        await flushing
        assert (await requests["held"]).finish == "length"


async def test_the_engine_says_what_it_serves_and_what_it_is_at(engine: EngineClient, models: Path) -> None:
    info = await engine.model_info(timeout_s=D)
    assert (info.model_path, info.weight_version) == (str(models / "0"), "0")
    assert (await engine.server_info(timeout_s=D)).weight_loaders == ()
    idle = await engine.load(timeout_s=D)
    assert (idle.running, idle.waiting) == (0, 0)
    async with held_requests(engine, "one", "two"):
        load = await engine.load(timeout_s=D)
        assert load.running + load.waiting == 2
        assert 0 <= load.token_usage < 1
    await engine.check_health(timeout_s=D)


async def test_what_the_engine_does_not_take_is_a_refusal_with_its_reason(engine: EngineClient, tmp_path: Path) -> None:
    (tmp_path / "sparse").write_bytes(b"nothing of use")
    with pytest.raises(EngineRefused, match="safetensors"):
        await engine.update_weights_from_sparse_file(tmp_path / "sparse", weight_version="1.1", timeout_s=D)
    with pytest.raises(EngineRefused, match="404"):
        await engine.update_weights_from_tensor(["AA=="], load_format=None, weight_version="1.1", timeout_s=D)
    assert (await engine.model_info(timeout_s=D)).weight_version == "0"


async def test_who_listens_is_told_what_the_answer_begins_with(engine: EngineClient) -> None:
    whole = await ask(engine)
    told: list[Generated] = []
    answer = await engine.generate((1, 2), LONG, request_id="r", weight_version="0", progress=told.append)
    assert answer.token_ids == whole.token_ids
    assert answer.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert answer.weight_runs == whole.weight_runs
    heard = tuple(token for part in told for token in part.token_ids)
    assert len(told) > 1
    assert answer.token_ids[: len(heard)] == heard
    assert len(heard) < len(answer.token_ids), "the last token comes with the end"


async def test_a_stream_is_of_one_prompt(engine: EngineClient, engine_process: EngineProcess) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine_process.url}/generate", json={"input_ids": [[1], [2]], "stream": True}) as response,
    ):
        assert response.status == 400
        assert "stream: give one prompt" in await response.text()


async def test_one_client_outlives_its_engine(engine: EngineClient, engine_process: EngineProcess) -> None:
    before = await ask(engine)
    engine_process.kill()
    with pytest.raises(EngineUnavailable):
        await ask(engine)
    engine_process.start()
    await engine_process.serves()
    assert (await ask(engine)).token_ids == before.token_ids


async def test_an_engine_that_never_comes_up_is_a_typed_error(engine_process: EngineProcess) -> None:
    async with EngineClient("http://127.0.0.1:9", request_timeout_s=D) as nobody:
        with pytest.raises(EngineTimeout, match="not healthy"):
            await nobody.wait_healthy(timeout_s=0.5)


@pytest.mark.parametrize("salted", [True, False])
async def test_prefixes_are_told_apart_by_weights_where_an_engine_keeps_them_across_updates(salted: bool) -> None:
    """What SGLang is sent; it is not here to answer."""
    bodies: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 3, None]], "weight_version": "1.4"}
        return web.json_response({"meta_info": meta})

    application = web.Application()
    application.router.add_post("/generate", generate)
    async with (
        TestServer(application) as server,
        EngineClient(str(server.make_url("/")), request_timeout_s=D, salt_prefixes=salted) as engine,
    ):
        answer = await engine.generate([1], LONG, request_id="r", weight_version="1.4")
    assert answer.weight_runs is None
    assert bodies[0].get("extra_key") == ("1.4" if salted else None)


@pytest.mark.parametrize("whole", [True, False])
async def test_logprobs_of_the_whole_distribution_become_those_of_what_was_drawn_from(whole: bool) -> None:
    """What SGLang is sent; it is not here to answer."""
    bodies: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        likeliest = [[math.log(0.5), 3, None], [math.log(0.3), 4, None]]
        meta = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [likeliest[1]],
            "output_top_logprobs": [likeliest],
            "weight_version": "0",
        }
        return web.json_response({"meta_info": meta})

    application = web.Application()
    application.router.add_post("/generate", generate)
    settings = SamplingSettings(max_new_tokens=1, top_k=2)
    async with (
        TestServer(application) as server,
        EngineClient(str(server.make_url("/")), request_timeout_s=D, whole_logprobs=whole) as engine,
    ):
        answer = await engine.generate([1], settings, request_id="r", weight_version="0")
    assert bodies[0].get("top_logprobs_num") == (2 if whole else None)
    assert answer.logprobs == pytest.approx([math.log(0.3 / 0.8 if whole else 0.3)])
