"""Our clients of the chat APIs that frozen policies may be served by, against servers that answer as those do."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from trimtab.rollout.engines.anthropic import AnthropicClient
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineOverloaded,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    SamplingSettings,
)
from trimtab.rollout.engines.endpoint import EngineUnauthorized
from trimtab.rollout.engines.messages import MESSAGES
from trimtab.rollout.engines.openai_chat import OpenAIChatClient

KEY = "sk-this-is-the-secret-key"
FIELD = "pools[local].engines[judge].endpoint"
CLIENTS: dict[str, type[AnthropicClient] | type[OpenAIChatClient]] = {
    "anthropic": AnthropicClient,
    "openai": OpenAIChatClient,
}
PROMPT = MESSAGES.opening([{"role": "system", "content": "Be strict."}, {"role": "user", "content": "Is it 4?"}])
SETTINGS = SamplingSettings(max_new_tokens=50, temperature=0.5, top_p=0.9, top_k=5, seed=3, stop=("END",))
Client = AnthropicClient | OpenAIChatClient
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def anthropic_answer(text: str, reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "text", "text": text}], "stop_reason": reason, **more}


def openai_answer(text: str | None, reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text, **more}, "finish_reason": reason}]}


@asynccontextmanager
async def client_of(name: str, handler: Handler, *, timeout_s: float = 30.0) -> AsyncIterator[Client]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with (
        TestServer(application) as server,
        CLIENTS[name](
            str(server.make_url("/")),
            model="the-model",
            api_key=SecretStr(KEY),
            field=FIELD,
            request_timeout_s=timeout_s,
            clock=time.monotonic,
        ) as client,
    ):
        yield client


def answering(*answers: dict[str, Any], asked: list[tuple[web.Request, dict[str, Any]]]) -> Handler:
    left = list(answers)

    async def handler(request: web.Request) -> web.Response:
        asked.append((request, await request.json()))
        return web.json_response(left.pop(0))

    return handler


async def generate(client: Client) -> str:
    part = await client.generate(PROMPT, SETTINGS, request_id="r", weight_version="0")
    assert (part.weight_version, part.weight_runs) == ("0", None)
    return f"{part.finish}: {MESSAGES.decode(list(part.token_ids))}"


async def test_anthropic_is_asked_as_its_documentation_says() -> None:
    asked: list[tuple[web.Request, dict[str, Any]]] = []
    async with client_of("anthropic", answering(anthropic_answer("Yes."), asked=asked)) as client:
        assert await generate(client) == "stop: Yes."
    ((request, body),) = asked
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert body == {
        "model": "the-model",
        "max_tokens": 50,
        "system": "Be strict.",
        "messages": [{"role": "user", "content": "Is it 4?"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
    }


async def test_openai_is_asked_as_its_documentation_says() -> None:
    asked: list[tuple[web.Request, dict[str, Any]]] = []
    async with client_of("openai", answering(openai_answer("Yes."), asked=asked)) as client:
        assert await generate(client) == "stop: Yes."
    ((request, body),) = asked
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "the-model",
        "messages": [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "Is it 4?"}],
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 3,
        "stop": ["END"],
    }


async def test_a_model_that_insists_on_the_newer_name_of_the_limit_gets_it_from_then_on() -> None:
    seen: list[str] = []

    async def picky(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append(next(name for name in body if name.startswith("max_")))
        if "max_tokens" in body:
            return web.json_response({"error": {"message": "Unsupported parameter: 'max_tokens'"}}, status=400)
        return web.json_response(openai_answer("Yes."))

    async with client_of("openai", picky) as client:
        assert [await generate(client) for _ in range(2)] == ["stop: Yes."] * 2
    assert seen == ["max_tokens", "max_completion_tokens", "max_completion_tokens"]


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("anthropic", anthropic_answer("Ye", "max_tokens"), "length: Ye"),
        ("anthropic", anthropic_answer("Yes", "stop_sequence", stop_sequence="END"), "stop: YesEND"),
        ("anthropic", anthropic_answer("") | {"content": []}, "stop: "),
        ("openai", openai_answer("Ye", "length"), "length: Ye"),
        ("openai", openai_answer(None), "stop: "),
    ],
)
async def test_what_ended_an_answer_is_kept(name: str, answer: dict[str, Any], expected: str) -> None:
    async with client_of(name, answering(answer, asked=[])) as client:
        assert await generate(client) == expected


@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        ("anthropic", anthropic_answer("no", "refusal"), EngineRefused),
        ("anthropic", anthropic_answer("x", "pause_turn"), EngineError),
        ("anthropic", {"type": "message"}, EngineError),
        ("openai", openai_answer("no", "content_filter"), EngineRefused),
        ("openai", openai_answer("", refusal="I will not"), EngineRefused),
        ("openai", {"choices": []}, EngineError),
    ],
)
async def test_what_is_no_answer_is_a_failure(name: str, answer: dict[str, Any], error: type[EngineError]) -> None:
    async with client_of(name, answering(answer, asked=[])) as client:
        with pytest.raises(EngineError) as raised:
            await generate(client)
    assert type(raised.value) is error


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, EngineUnauthorized),
        (400, EngineRefused),
        (429, EngineOverloaded),
        (529, EngineOverloaded),
        (500, EngineUnavailable),
    ],
)
async def test_refusals_are_told_apart_and_no_key_is_repeated(name: str, status: int, error: type[EngineError]) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"bad key {KEY}")

    async with client_of(name, refuse) as client:
        with pytest.raises(error) as raised:
            await generate(client)
    assert KEY not in str(raised.value)
    if status == 401:
        assert f"{FIELD}.apiKeySecret" in str(raised.value)


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_endpoint_that_asks_for_patience_is_left_alone_for_so_long(name: str) -> None:
    times: list[float] = []

    async def busy(request: web.Request) -> web.Response:
        times.append(time.monotonic())
        if len(times) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return web.json_response(anthropic_answer("Yes.") if name == "anthropic" else openai_answer("Yes."))

    async with client_of(name, busy) as client:
        with pytest.raises(EngineOverloaded):
            await generate(client)
        assert await generate(client) == "stop: Yes."
    assert times[1] - times[0] >= 0.99


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_endpoint_that_does_not_answer_is_a_failure_in_time(name: str) -> None:
    async def silent(request: web.Request) -> web.Response:
        await asyncio.sleep(30.0)
        return web.Response()

    async with client_of(name, silent, timeout_s=0.2) as client:
        with pytest.raises(EngineTimeout):
            await generate(client)


@pytest.mark.parametrize("status", [200, pytest.param(500, marks=pytest.mark.slow)])
async def test_a_small_answer_that_unpacks_to_a_huge_one_is_not_read_to_its_end(status: int) -> None:
    packed = gzip.compress(bytes(300 << 20), compresslevel=1)

    async def bomb(request: web.Request) -> web.Response:
        return web.Response(status=status, body=packed, headers={"Content-Encoding": "gzip"})

    async with client_of("openai", bomb) as client:
        with pytest.raises(EngineError, match="more than 256 MiB"):
            await generate(client)


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_model_that_the_endpoint_does_not_have_is_found_out_before_any_episode(name: str) -> None:
    async def models(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "another"}]})
        return web.json_response({"type": "error"}, status=404)

    async with client_of(name, models) as client:
        with pytest.raises(EngineRefused, match="endpoint.model: the endpoint does not have 'the-model'"):
            await client.check()
