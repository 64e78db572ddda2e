"""The endpoint in the pod that agents ask, on loopback: OpenAI's and Anthropic's protocols over one kind of session."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, cast

from aiohttp import web

from trimtab.rollout.gateway.exchange import Answer, GatewayError, Piece, Session, UnknownRole
from trimtab.rollout.gateway.protocols.anthropic_messages import AnthropicMessages
from trimtab.rollout.gateway.protocols.openai_chat import OpenAIChat
from trimtab.rollout.gateway.protocols.openai_completions import OpenAICompletions
from trimtab.rollout.gateway.protocols.openai_responses import OpenAIResponses
from trimtab.rollout.gateway.protocols.progress import BrokenStream
from trimtab.rollout.gateway.protocols.surface import (
    KEEP_ALIVE,
    NotFound,
    Reply,
    Stamp,
    Surface,
    TooLarge,
    Writer,
    compact,
)
from trimtab.rollout.gateway.sessions import Admitted, Sessions, in_time, outcome

_SHUTDOWN_S = 1.0
_OPENAI = OpenAIChat()
_ANTHROPIC = AnthropicMessages()
_SURFACES: tuple[Surface, ...] = (_OPENAI, OpenAIResponses(), OpenAICompletions(), _ANTHROPIC)


class GatewayServer:
    """`admit` a session and its key is good for as long as the context lasts.

    An agent that does not send its request, or does not read its stream, for `transfer_timeout_s` is cut off. One that
    waits is told every `quiet_s` that it is not forgotten.
    """

    def __init__(
        self,
        *,
        roles: Sequence[str],
        max_body: int = 16 << 20,
        requests_at_once: int = 64,
        request_timeout_s: float = 3600.0,
        transfer_timeout_s: float = 60.0,
        quiet_s: float = 10.0,
        new_id: Callable[[], str] = lambda: secrets.token_hex(12),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._roles = tuple(roles)
        self._max_body = max_body
        self._request_timeout_s = request_timeout_s
        self._transfer_timeout_s = transfer_timeout_s
        self._quiet_s = quiet_s
        self._new_id = new_id
        self._clock = clock
        self._started = int(clock())
        self._sessions = Sessions(requests_at_once=requests_at_once)

    def admit(self, session: Session, *, key: str) -> AbstractAsyncContextManager[None]:
        return self._sessions.admit(session, key=key)

    @asynccontextmanager
    async def listening(self, *, port: int = 0) -> AsyncIterator[str]:
        """The URL, without /v1. Only this machine reaches it."""
        runner = web.AppRunner(
            self.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            host, bound = runner.addresses[0][:2]
            yield f"http://{host}:{bound}"
        finally:
            await runner.cleanup()

    def application(self) -> web.Application:
        application = web.Application(client_max_size=self._max_body)
        application.add_routes([web.post(surface.path, self._asked(surface)) for surface in _SURFACES])
        application.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/v1/models/{role}", self._model),
                web.route("*", "/{path:.*}", self._nothing),
            ]
        )
        return application

    def _asked(self, surface: Surface) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                admitted = self._sessions.of(_key(request))
                async with admitted.slot(timeout_s=self._request_timeout_s):
                    async with in_time(self._transfer_timeout_s):
                        body = await _body(request, limit=self._max_body)
                    reply = surface.read(body)
                    self._check_role(reply.ask.role)
                    stamp = Stamp(ident=self._new_id(), created=int(self._clock()))
                    if reply.streams:
                        return await self._stream(request, admitted, reply, stamp)
                    answers = await admitted.work(admitted.session.ask(reply.ask), timeout_s=self._request_timeout_s)
                    return _json(200, reply.whole(answers, stamp), stamp)
            except GatewayError as error:
                return _failed(surface, error)

        return handle

    async def _stream(self, request: web.Request, admitted: Admitted, reply: Reply, stamp: Stamp) -> web.StreamResponse:
        """What is refused before the first word is refused with a status."""
        writer = reply.writer(stamp)
        response = web.StreamResponse(headers={**_known_by(stamp), "Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"

        async def send(parts: Iterable[bytes]) -> None:
            async with asyncio.timeout(self._transfer_timeout_s):
                if not response.prepared:
                    await response.prepare(request)
                    parts = (*writer.begin(), *parts)
                if data := b"".join(parts):
                    await response.write(data)

        try:
            async with in_time(self._request_timeout_s):
                await self._relay(admitted, reply, writer, send)
        except GatewayError as error:
            if not response.prepared:
                raise
            with contextlib.suppress(TimeoutError, ConnectionError):
                await send(writer.fail(error))
        except (TimeoutError, ConnectionError):
            # The agent has gone, or does not read: nobody is left to tell.
            if request.transport is not None:
                request.transport.abort()
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response

    async def _relay(
        self,
        admitted: Admitted,
        reply: Reply,
        writer: Writer,
        send: Callable[[Iterable[bytes]], Awaitable[None]],
    ) -> None:
        whole = 0
        # A generator, in the session that there is: what is given up is told so.
        parts = admitted.session.stream(reply.ask)
        async with aclosing(cast(Any, parts)):
            while whole < reply.ask.count:
                coming = admitted.begin(_next(parts))
                try:
                    while not (await asyncio.wait({coming}, timeout=self._quiet_s))[0]:
                        await send((KEEP_ALIVE,))
                finally:
                    if not coming.done():
                        coming.cancel()
                        await asyncio.wait({coming}, timeout=self._transfer_timeout_s)
                part = outcome(coming)
                if part is None:
                    raise BrokenStream(f"the stream ended after {whole} of {reply.ask.count} answers")
                if isinstance(part, Piece):
                    await send(writer.piece(part))
                else:
                    await send(writer.answer(whole, part))
                    whole += 1
        await send(writer.end())

    async def _models(self, request: web.Request) -> web.StreamResponse:
        surface = _spoken(request)
        try:
            self._sessions.of(_key(request))
        except GatewayError as error:
            return _failed(surface, error)
        cards = [self._card(role) for role in self._roles]
        ends = {"first_id": self._roles[0], "last_id": self._roles[-1]} if self._roles else {}
        return web.json_response({"object": "list", "data": cards, "has_more": False, **ends})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        try:
            self._sessions.of(_key(request))
            self._check_role(request.match_info["role"])
        except GatewayError as error:
            return _failed(_spoken(request), error)
        return web.json_response(self._card(request.match_info["role"]))

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        served = ", ".join(f"POST {surface.path}" for surface in _SURFACES)
        why = f"{request.method} {request.path} is not served here: there are {served} and GET /v1/models"
        return _failed(_spoken(request), NotFound(why))

    def _check_role(self, role: str) -> None:
        if role not in self._roles:
            raise UnknownRole(f"model: there is no role {role[:200]!r}: this job has {', '.join(self._roles)}")

    def _card(self, role: str) -> Mapping[str, Any]:
        """In OpenAI's and Anthropic's words at once."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started))
        openai = {"id": role, "object": "model", "created": self._started, "owned_by": "trimtab"}
        return {**openai, "type": "model", "display_name": role, "created_at": created}


async def _next(parts: AsyncIterator[Piece | Answer]) -> Piece | Answer | None:
    return await anext(parts, None)


async def _body(request: web.Request, *, limit: int) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise TooLarge(f"the request has more than {limit} bytes") from None


def _key(request: web.Request) -> str | None:
    """Anthropic's header, or the one that everybody has."""
    given = request.headers.get("x-api-key")
    if given is not None:
        return given
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _spoken(request: web.Request) -> Surface:
    return _ANTHROPIC if "anthropic-version" in request.headers else _OPENAI


def _failed(surface: Surface, error: GatewayError) -> web.Response:
    """No error here goes away by asking again, so the libraries are told not to."""
    status, body = surface.failure(error)
    return web.Response(
        status=status, text=compact(body), content_type="application/json", headers={"x-should-retry": "false"}
    )


def _json(status: int, body: Mapping[str, Any], stamp: Stamp) -> web.Response:
    return web.Response(status=status, text=compact(body), content_type="application/json", headers=_known_by(stamp))


def _known_by(stamp: Stamp) -> dict[str, str]:
    """As the two libraries look for it."""
    return {"x-request-id": f"req_{stamp.ident}", "request-id": f"req_{stamp.ident}"}
