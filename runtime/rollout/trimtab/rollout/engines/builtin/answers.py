"""Parsing and refusing in SGLang's shape, and waiting for the model's thread with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from trimtab.rollout.engines.builtin.scheduler import EngineDeadError

_COMMAND_TIMEOUT_S = 120.0

Body = TypeVar("Body", bound=BaseModel)


def error_answer(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def bad_request(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=error_answer(400, message).text, content_type="application/json")


def not_found(message: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(text=error_answer(404, message).text, content_type="application/json")


def too_many_requests(message: str) -> web.HTTPTooManyRequests:
    return web.HTTPTooManyRequests(text=error_answer(429, message).text, content_type="application/json")


def unavailable(message: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=error_answer(503, message).text, content_type="application/json")


async def parsed(request: web.Request, kind: type[Body]) -> Body:
    """The body, or a 400 that names the fields."""
    try:
        return kind.model_validate_json(await request.read() or b"{}")
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in error.errors()
        )
        raise bad_request(problems) from None


async def carried_out(command: Callable[[], Future[None]]) -> None:
    """Once the model's thread has done it; 503 if that has ended, 504 if it does not come to it."""
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            await asyncio.wrap_future(command())
    except EngineDeadError as dead:
        raise unavailable(str(dead)) from None
    except TimeoutError:
        text = error_answer(504, f"the model did not come to it within {_COMMAND_TIMEOUT_S:.0f} s").text
        raise web.HTTPGatewayTimeout(text=text, content_type="application/json") from None
