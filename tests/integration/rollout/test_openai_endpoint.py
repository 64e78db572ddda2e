"""The OpenAI surface of the built-in engine, and our client of any such endpoint, against each other and its faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr
from structlog.testing import capture_logs
from transformers import AutoTokenizer

from tests.support.rollout.engine_process import EngineProcess
from trimtab.embedded.ports import free_ports
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineNotFound,
    EngineOverloaded,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Generated,
    SamplingSettings,
)
from trimtab.rollout.engines.endpoint import EngineUnauthorized
from trimtab.rollout.engines.openai import OpenAIClient
from trimtab.rollout.workflows.team import Tokenizer

PROMPT = [1, 10, 2, 10, 3, 11]
GREEDY = SamplingSettings(max_new_tokens=12, temperature=0.0)
KEY = "sk-this-is-the-secret-key"

Connect = Callable[..., OpenAIClient]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def tokenizer(models: Path) -> Tokenizer:
    return Tokenizer.of(AutoTokenizer.from_pretrained(models / "0"))


@pytest.fixture
def model(models: Path) -> str:
    return str(models / "0")


@pytest.fixture
def connect(model: str, tokenizer: Tokenizer) -> Connect:
    def make(url: str, *, request_timeout_s: float = 300.0, model: str = model) -> OpenAIClient:
        return OpenAIClient(
            url,
            model=model,
            api_key=SecretStr(KEY),
            tokenizer=tokenizer,
            request_timeout_s=request_timeout_s,
            clock=time.monotonic,
        )

    return make


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """A server that answers everything with this."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(application) as server:
        yield str(server.make_url("/"))


def assert_same(one: Generated, other: Generated) -> None:
    """Up to the last bits of a logprob: a prompt that is computed again is rounded differently. By OpenAI's API nobody
    says which weights sampled a token.
    """
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert replace(one, logprobs=(), weight_runs=None) == replace(other, logprobs=(), weight_runs=None)


async def test_an_answer_is_the_one_of_generate_token_for_token(
    engine: EngineClient, engine_process: EngineProcess, connect: Connect
) -> None:
    wanted = await engine.generate(PROMPT, GREEDY, request_id="r", weight_version="0")
    for url in (engine_process.url, f"{engine_process.url}/v1/"):
        async with connect(url) as client:
            await client.check()
            assert_same(await client.generate(PROMPT, GREEDY, request_id="r", weight_version="0"), wanted)


async def test_seed_and_truncation_reach_the_endpoint(
    engine: EngineClient, engine_process: EngineProcess, connect: Connect
) -> None:
    settings = SamplingSettings(max_new_tokens=24, top_p=0.9, top_k=5, seed=7)
    wanted = await engine.generate(PROMPT, settings, request_id="r", weight_version="0")
    async with connect(engine_process.url) as client:
        assert_same(await client.generate(PROMPT, settings, request_id="r", weight_version="0"), wanted)


@pytest.mark.parametrize("behaviour", ["refuses", "ignores"])
@pytest.mark.parametrize(
    "lacking", [("return_token_ids",), ("return_token_ids", "return_tokens_as_token_ids")], ids=["older", "plain"]
)
async def test_a_server_without_the_extensions_is_asked_without_them(
    engine: EngineClient, engine_process: EngineProcess, connect: Connect, lacking: tuple[str, ...], behaviour: str
) -> None:
    """The built-in engine behind something that does not know them."""
    refused = 0

    async def older(request: web.Request) -> web.Response:
        nonlocal refused
        body = await request.json()
        unknown = [field for field in lacking if field in body]
        if unknown and behaviour == "refuses":
            refused += 1
            message = f"Unrecognized request argument supplied: {unknown[0]}"
            return web.json_response({"error": {"message": message}}, status=400)
        body = {field: value for field, value in body.items() if field not in lacking}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{engine_process.url}{request.path}", json=body) as response,
        ):
            return web.json_response(await response.json())

    wanted = await engine.generate(PROMPT, GREEDY, request_id="r", weight_version="0")
    async with served(older) as url, connect(url) as client:
        for _ in range(3):
            assert_same(await client.generate(PROMPT, GREEDY, request_id="r", weight_version="0"), wanted)
    assert refused == (len(lacking) if behaviour == "refuses" else 0)


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"stream": True}, 400, "stream"),
        ({"n": 2}, 400, "n"),
        ({"logprobs": 5}, 400, "logprobs"),
        ({"best_of": 3}, 400, "best_of"),
        ({"prompt": [[1, 2], [3]]}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [99]}, 400, "[0, 15)"),
        ({"max_tokens": 1000}, 400, "the model takes 64"),
        ({"model": "gpt-unknown"}, 404, "'gpt-unknown' is not served here"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(
    engine_process: EngineProcess, model: str, change: dict[str, Any], status: int, named: str
) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4} | change
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine_process.url}/v1/completions", json=body) as response,
    ):
        answer = await response.json()
    assert response.status == status
    assert named in answer["error"]["message"]


def answers(status: int, text: str = "no", **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        return web.json_response({"error": {"message": f"{text} {KEY}"}}, status=status, headers=headers)

    return handler


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, EngineUnauthorized, "engine-unauthorized"),
        (403, EngineUnauthorized, "engine-unauthorized"),
        (429, EngineOverloaded, "engine-overloaded"),
        (400, EngineRefused, "engine-refused"),
        (404, EngineNotFound, "engine-not-found"),
        (500, EngineUnavailable, "engine-unavailable"),
        (503, EngineUnavailable, "engine-unavailable"),
        (408, EngineUnavailable, "engine-unavailable"),
    ],
)
async def test_what_an_endpoint_refuses_is_typed_and_the_key_is_in_no_text(
    connect: Connect, status: int, error: type[EngineError], kind: str
) -> None:
    with capture_logs() as logs:
        async with served(answers(status)) as url, connect(url) as client:
            with pytest.raises(error) as caught:
                await client.generate(PROMPT, GREEDY, request_id="r", weight_version="0")
    assert type(caught.value) is error
    assert caught.value.kind == kind
    assert str(status) in str(caught.value)
    assert KEY not in f"{caught.value!r} {logs}"


async def test_nobody_there_and_nobody_answering_are_typed(connect: Connect, engine_process: EngineProcess) -> None:
    (port,) = free_ports(1)
    async with connect(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(EngineUnavailable):
            await client.generate(PROMPT, GREEDY, request_id="r", weight_version="0")

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60.0)
        raise AssertionError

    async with served(hang) as url, connect(url, request_timeout_s=0.2) as client:
        with pytest.raises(EngineTimeout, match=r"within 0.2 s"):
            await client.generate(PROMPT, GREEDY, request_id="r", weight_version="0")


@pytest.mark.parametrize("text", ["<html>", "[1]"])
async def test_what_is_no_answer_is_an_error(connect: Connect, text: str) -> None:
    async def strange(request: web.Request) -> web.Response:
        return web.Response(text=text)

    async with served(strange) as url, connect(url) as client:
        with pytest.raises(EngineError) as caught:
            await client.generate(PROMPT, GREEDY, request_id="r", weight_version="0")
    assert caught.value.kind == "engine-error"


async def test_all_requests_keep_to_the_retry_after_that_one_was_given(
    connect: Connect, engine_process: EngineProcess
) -> None:
    times: list[float] = []

    async def limited(request: web.Request) -> web.Response:
        times.append(time.monotonic())
        if len(times) == 1:
            return web.json_response({}, status=429, headers={"Retry-After": "1"})
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{engine_process.url}{request.path}", json=await request.json()) as response,
        ):
            return web.json_response(await response.json())

    async with served(limited) as url, connect(url, request_timeout_s=300.0) as client:
        with pytest.raises(EngineOverloaded):
            await client.generate(PROMPT, GREEDY, request_id="first", weight_version="0")
        await asyncio.gather(
            *(client.generate(PROMPT, GREEDY, request_id=f"r{n}", weight_version="0") for n in range(3))
        )
    assert len(times) == 4
    assert min(times[1:]) - times[0] >= 0.95


async def test_a_model_that_the_endpoint_does_not_have_is_named(
    connect: Connect, engine_process: EngineProcess, model: str
) -> None:
    async with connect(engine_process.url, model="gpt-unknown") as client:
        with pytest.raises(EngineRefused, match="does not have 'gpt-unknown'; it has"):
            await client.check()
