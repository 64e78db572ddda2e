"""An endpoint that stumbles is asked again; one that answers nonsense is a failure, never an empty result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trimtab.rollout.search.endpoint import SearchEndpoint
from trimtab.rollout.search.passages import Passage, SearchFailed

Serve = Callable[[Callable[[dict[str, Any]], Awaitable[web.Response]]], Awaitable[str]]
FOUND = {"result": [[{"document": {"id": "7", "contents": '"Bob"\nlives in Oslo'}, "score": 3.5}]]}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(answer: Callable[[dict[str, Any]], Awaitable[web.Response]]) -> str:
        async def handle(request: web.Request) -> web.Response:
            return await answer(await request.json())

        app = web.Application()
        app.router.add_post("/retrieve", handle)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return str(server.make_url("/retrieve"))

    yield start
    for server in servers:
        await server.close()


async def no_wait(_: float) -> None: ...


async def test_it_speaks_the_protocol_of_search_r1(serve: Serve) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(body: dict[str, Any]) -> web.Response:
        asked.append(body)
        return web.json_response(FOUND)

    search = SearchEndpoint(await serve(answer), results=3, timeout_s=10)
    assert await search.find("where is bob" + " " * 5000) == [Passage(title="Bob", text="lives in Oslo")]
    (body,) = asked
    assert (body["topk"], body["return_scores"], len(body["queries"][0])) == (3, True, 1000)


async def test_documents_without_scores_and_more_than_were_asked_for_will_do(serve: Serve) -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return web.json_response({"result": [[{"text": "one"}, {"text": "two"}, {"text": "three"}]]})

    search = SearchEndpoint(await serve(answer), results=2, timeout_s=10)
    assert await search.find("x") == [Passage(text="one"), Passage(text="two")]


async def test_trouble_that_passes_is_waited_for(serve: Serve) -> None:
    statuses = [503, 429, 500, 200]
    waited: list[float] = []

    async def answer(body: dict[str, Any]) -> web.Response:
        return web.json_response(FOUND, status=statuses.pop(0))

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    assert await SearchEndpoint(await serve(answer), results=1, timeout_s=10, sleep=sleep).find("x")
    assert len(waited) == 3
    assert all(seconds <= 0.2 * 2**attempt for attempt, seconds in enumerate(waited))


async def test_trouble_that_stays_is_a_failure(serve: Serve) -> None:
    asked = 0

    async def answer(body: dict[str, Any]) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=503, text="warming up")

    with pytest.raises(SearchFailed, match="5 attempts, the last: it answered 503: warming up"):
        await SearchEndpoint(await serve(answer), results=1, timeout_s=10, sleep=no_wait).find("x")
    assert asked == 5


async def test_one_that_hangs_is_left(serve: Serve) -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(60)
        return web.json_response(FOUND)

    with pytest.raises(SearchFailed, match="5 attempts, the last: TimeoutError"):
        await SearchEndpoint(await serve(answer), results=1, timeout_s=0.05, sleep=no_wait).find("x")


async def test_nobody_there_is_a_failure() -> None:
    with pytest.raises(SearchFailed, match="5 attempts, the last: ClientConnector"):
        await SearchEndpoint("http://127.0.0.1:9/retrieve", results=1, timeout_s=5, sleep=no_wait).find("x")


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("no such path", 404, "answered 404: no such path"),
        ("<html>", 200, "answered no JSON"),
        ("[]", 200, r'answer \{"result": \[\[…\]\]\}'),
        ('{"result": []}', 200, "a list for each query"),
        ('{"result": [[7]]}', 200, "a document: 7 is no object"),
        ('{"result": [[{"document": {"body": "x"}}]]}', 200, "a document: it has body: `text` is needed"),
        ('"' + "x" * (5 << 20) + '"', 200, "answered over 4194304 bytes: see search.results"),
    ],
)
async def test_what_is_no_answer_is_a_failure_at_once(serve: Serve, text: str, status: int, message: str) -> None:
    asked = 0

    async def answer(body: dict[str, Any]) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=text, status=status)

    with pytest.raises(SearchFailed, match=message):
        await SearchEndpoint(await serve(answer), results=1, timeout_s=10, sleep=no_wait).find("x")
    assert asked == 1
