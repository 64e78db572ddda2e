"""The gateway for all protocols alike: keys, roles, errors that no library repeats, agents that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.support.gateway.scripted_session import ScriptedSession, answer, failing, saying
from tests.support.gateway.serving import KEY, ROLES, Served, served
from tests.support.polling import eventually
from trimtab.rollout.gateway.exchange import BudgetSpent, GatewayError, Refused, Unavailable, UnknownRole

Asking = Callable[..., Awaitable[Any]]
HELLO: Any = [{"role": "user", "content": "hello"}]


def by_chat(gateway: Served, model: str = "planner", *, stream: Any = False) -> Awaitable[Any]:
    return gateway.openai.chat.completions.create(model=model, messages=HELLO, stream=stream)


def by_responses(gateway: Served, model: str = "planner", *, stream: Any = False) -> Awaitable[Any]:
    return gateway.openai.responses.create(model=model, input="hello", stream=stream)


def by_completions(gateway: Served, model: str = "planner", *, stream: Any = False) -> Awaitable[Any]:
    return gateway.openai.completions.create(model=model, prompt="hello", stream=stream)


def by_messages(gateway: Served, model: str = "planner", *, stream: Any = False) -> Awaitable[Any]:
    return gateway.anthropic.messages.create(model=model, max_tokens=9, messages=HELLO, stream=stream)


PROTOCOLS = [by_chat, by_responses, by_completions, by_messages]


@pytest.mark.parametrize("ask", PROTOCOLS)
async def test_a_key_of_no_session_is_an_authentication_error(ask: Asking) -> None:
    session = saying(answer("never"))
    async with served(session, used="another") as gateway:
        with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
            await ask(gateway)
    assert session.asked == []


@pytest.mark.parametrize("ask", PROTOCOLS)
async def test_an_unknown_role_is_refused_with_those_that_there_are(ask: Asking) -> None:
    async with served(saying(answer("never"))) as gateway:
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError), match="planner, verifier"):
            await ask(gateway, "gpt-4o")


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ask", PROTOCOLS)
async def test_no_error_is_repeated_by_the_libraries(ask: Asking, stream: bool) -> None:
    statuses: dict[type[GatewayError], set[int]] = {
        Refused: {400},
        UnknownRole: {404},
        BudgetSpent: {429, 400},
        Unavailable: {503},
    }
    for kind, expected in statuses.items():
        session = failing(kind("messages: so it is"))
        async with served(session) as gateway:
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="so it is") as caught:
                await ask(gateway, stream=stream)
        assert isinstance(caught.value, openai.APIStatusError | anthropic.APIStatusError)
        assert caught.value.status_code in expected
        assert len(session.asked) == 1


@pytest.mark.parametrize("ask", [by_chat, by_completions])
async def test_a_stream_that_fails_is_an_error_of_the_library(ask: Asking) -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], fails_after=(2, Unavailable("the worker drains")))
    async with served(session) as gateway:
        stream = await ask(gateway, stream=True)
        with pytest.raises(openai.APIError, match="the worker drains"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("ask", PROTOCOLS)
async def test_an_agent_that_leaves_its_stream_cancels_what_it_asked(ask: Asking) -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], holds_after=2)
    async with served(session) as gateway:
        stream = await ask(gateway, stream=True)
        await eventually(lambda: session.waiting == 1, timeout_s=5)
        await stream.close()
        async with asyncio.timeout(30):
            await session.cancelled.wait()


async def test_an_agent_that_does_not_wait_for_its_answer_cancels_it() -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], holds_after=0)
    async with served(session) as gateway:
        impatient = gateway.openai.with_options(timeout=0.5, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            await impatient.chat.completions.create(model="planner", messages=HELLO)
        async with asyncio.timeout(30):
            await session.cancelled.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_asked_when_the_episode_ends_is_answered_at_once(stream: bool) -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], holds_after=0)
    async with served(saying(answer("so")), key="other") as gateway:
        async with gateway.server.admit(session, key=KEY):
            asking = asyncio.ensure_future(by_chat(gateway, stream=stream))
            await eventually(lambda: session.waiting == 1, timeout_s=5)
        with pytest.raises(openai.InternalServerError, match="the episode is over"):
            await asking
        with pytest.raises(openai.AuthenticationError):
            await by_chat(gateway)


async def test_a_long_silence_is_filled_with_comments() -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], holds_after=1)
    async with served(session, quiet_s=0.02) as gateway, aiohttp.ClientSession() as client:
        headers = {"Authorization": f"Bearer {KEY}"}
        body = {"model": "planner", "messages": HELLO, "stream": True}
        async with client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as response:
            async with asyncio.timeout(30):
                while not (await response.content.readline()).startswith(b": "):
                    pass


async def test_an_agent_that_does_not_read_is_cut_off() -> None:
    session = ScriptedSession(lambda _: [answer("x" * (64 << 20))], sizes=(1 << 20,))
    async with served(session, transfer_timeout_s=0.5) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        body = json.dumps({"model": "planner", "messages": HELLO, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readline()
        async with asyncio.timeout(60):
            await session.given_up.wait()
        writer.close()


async def test_sessions_do_not_see_one_another() -> None:
    planner, verifier = saying(answer("mine")), saying(answer("yours"))
    async with served(planner) as gateway, gateway.server.admit(verifier, key="second"):
        other = gateway.openai.with_options(api_key="second")
        first, second = await asyncio.gather(
            by_chat(gateway), other.chat.completions.create(model="planner", messages=HELLO)
        )
    assert first.choices[0].message.content == "mine"
    assert second.choices[0].message.content == "yours"
    assert (len(planner.asked), len(verifier.asked)) == (1, 1)


async def test_hundreds_of_sessions_stream_at_once_each_its_own() -> None:
    async with AsyncExitStack() as open_:
        gateway = await open_.enter_async_context(served(saying(answer("so"))))
        client = await open_.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        for number in range(200):
            session = saying(answer(f"mine is {number}"))
            await open_.enter_async_context(gateway.server.admit(session, key=f"key-{number}"))

        async def said(number: int) -> str:
            body = {"model": "planner", "prompt": "?", "stream": True}
            headers = {"Authorization": f"Bearer key-{number}"}
            async with client.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as response:
                lines = [line async for line in response.content if line.startswith(b"data: {")]
            return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)

        assert await asyncio.gather(*map(said, range(200))) == [f"mine is {number}" for number in range(200)]


async def test_an_agent_that_asks_for_too_much_at_once_waits() -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], holds_after=0)
    async with served(session, requests_at_once=2) as gateway:
        asking = [asyncio.ensure_future(by_chat(gateway)) for _ in range(5)]
        await eventually(lambda: session.waiting == 2, timeout_s=5)
        asking[0].cancel()
        await eventually(lambda: len(session.asked) == 3, timeout_s=5)
        assert session.waiting == 2
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_request_beyond_the_bound_is_refused() -> None:
    async with served(saying(answer("never")), max_body=1000) as gateway:
        with pytest.raises(openai.APIStatusError, match="more than 1000 bytes") as caught:
            await gateway.openai.completions.create(model="planner", prompt="x" * 2000)
    assert caught.value.status_code == 413


async def test_both_libraries_list_the_roles() -> None:
    async with served(saying(answer("so"))) as gateway:
        openai_models = [card.id async for card in gateway.openai.models.list()]
        anthropic_models = [card.id async for card in gateway.anthropic.models.list()]
        one = await gateway.openai.models.retrieve("verifier")
        with pytest.raises(openai.NotFoundError):
            await gateway.openai.models.retrieve("gpt-4o")
    assert tuple(openai_models) == tuple(anthropic_models) == ROLES
    assert one.id == "verifier"


async def test_what_is_not_served_is_said_in_the_protocol_s_shape() -> None:
    async with served(saying(answer("so"))) as gateway:
        with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
            await gateway.openai.embeddings.create(model="planner", input="x")
        with pytest.raises(anthropic.NotFoundError, match="POST /v1/messages"):
            await gateway.anthropic.messages.count_tokens(model="planner", messages=HELLO)
