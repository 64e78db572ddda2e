"""Stands between a worker and its engine, where a test sees what passes, holds it up or changes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.rollout.beside import beside

Forward = Callable[[web.Request], Awaitable[web.Response]]
"""Has the engine answer."""
OnTheWay = Callable[[web.Request, Forward], Awaitable[web.Response]]
"""What happens to a request and its answer."""


@asynccontextmanager
async def engine_behind(url: str, *on_the_way: OnTheWay) -> AsyncIterator[str]:
    """The engine's other address. What fails on the way fails inside, as a worker would only ask again."""
    failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def forward(request: web.Request) -> web.Response:
        async with session.request(request.method, request.path_qs, data=await request.read()) as response:
            return web.Response(status=response.status, body=await response.read(), content_type=response.content_type)

    answered: Forward = forward
    for step in on_the_way:
        answered = partial(_through, step, answered)

    async def answer(request: web.Request) -> web.Response:
        try:
            return await answered(request)
        except Exception as error:
            if not failure.done():
                failure.set_exception(error)
            raise

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with (
        aiohttp.ClientSession(base_url=url) as session,
        TestServer(application) as server,
        beside(_raised(failure)),
    ):
        yield str(server.make_url("/"))


async def _through(step: OnTheWay, forward: Forward, request: web.Request) -> web.Response:
    return await step(request, forward)


async def _raised(failure: asyncio.Future[None]) -> None:
    await failure
