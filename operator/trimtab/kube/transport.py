"""HTTP to the API server: a session, deadlines, bounds on what is read, and what failed as an error of ours. Reads are
tried again; what else may be, only the caller knows.
"""

from __future__ import annotations

import asyncio
import http
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.tls import TlsUnusable
from trimtab.kube.access import AccessError, ClusterAccess
from trimtab.kube.bounded_response import AnswerLimits, checked, decoded, read_bounded
from trimtab.kube.errors import KubeError, ServerError, TooLarge, TooManyRequests, Unreachable, api_error
from trimtab.kube.resources import Object, Resource

_CONNECT_S = 10.0
_WHOLE_OBJECTS = (None, "status")
"""Subresources that are answered with the object itself."""

RequestHook = Callable[[str, str, int], None]
"""Told of every answer: verb, plural with subresource, and the HTTP code, 0 when there was none."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call."""

    verb: str
    method: str
    resource: Resource
    path: str
    subresource: str | None = None
    parameters: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = "application/json"

    @property
    def plural(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class Transport:
    """One connection pool to one cluster, for one event loop."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        user_agent: str,
        on_request: RequestHook,
        deadline_s: float,
        backoff: FullJitter,
        limits: AnswerLimits,
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._on_request = on_request
        self._deadline_s = deadline_s
        self._backoff = backoff
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._session = aiohttp.ClientSession(
            # Unlimited, because watches hold their connections and must not starve the calls.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers={
                "User-Agent": self._user_agent,
                "Accept": "application/json",
                # Compression is a processor's work at both ends, and a few bytes could become as many as they like.
                "Accept-Encoding": "identity",
            },
            auto_decompress=False,
        )

    async def close(self) -> None:
        # First, so that no request begins on a session that is half closed.
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    async def read(self, request: Request) -> Object:
        """Try again what may pass by itself, as long as the deadline allows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        attempt = 0
        while True:
            try:
                return await self.once(request, deadline_s=max(0.001, deadline - loop.time()))
            except TooLarge:
                raise  # it will not be smaller the next time
            except (Unreachable, ServerError, TooManyRequests) as error:
                delay = retry_delay_s(error, attempt=attempt, backoff=self._backoff)
                if loop.time() + delay >= deadline:
                    raise
                attempt += 1
                await asyncio.sleep(delay)

    async def once(self, request: Request, *, deadline_s: float | None = None) -> Object:
        limit = self._deadline_s if deadline_s is None else deadline_s
        with _as_unreachable(request):
            async with asyncio.timeout(limit), self._send(request) as response:
                await self._check(request, response)
                answer = await self._answer(request, response)
        is_object = request.verb != "list" and request.resource.kind and request.resource.namespaced
        if is_object and request.subresource in _WHOLE_OBJECTS and answer.get("kind") != "Status":
            return checked(answer, call=str(request))
        return answer

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_s: float) -> AsyncGenerator[aiohttp.StreamReader, None]:
        """The bytes as they come; Unreachable when nothing comes for `idle_s`."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=idle_s)
        with _as_unreachable(request):
            async with self._send(request, limits=limits) as response:
                await self._check(request, response)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise Unreachable(f"{request}: the stream is compressed, which was not asked for")
                yield response.content

    async def _answer(self, request: Request, response: aiohttp.ClientResponse) -> Object:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise Unreachable(f"{request}: the answer is compressed, which was not asked for")
        body = await read_bounded(response.content.iter_any(), limit=self._limits.answer_bytes, call=str(request))
        return await decoded(body, call=str(request))

    @asynccontextmanager
    async def _send(
        self, request: Request, *, limits: aiohttp.ClientTimeout | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        if self._session is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        headers = {}
        if self._access.token is not None:
            headers["Authorization"] = f"Bearer {await self._access.token()}"
        data = None
        if request.body is not None:
            data = json.dumps(request.body).encode()
            headers["Content-Type"] = request.content_type
        options: dict[str, Any] = {} if limits is None else {"timeout": limits}
        answered = False
        try:
            async with self._session.request(
                request.method,
                self._access.server + request.path,
                params=dict(request.parameters or {}),
                data=data,
                headers=headers,
                allow_redirects=False,
                ssl=self._access.tls.context(),
                server_hostname=self._access.server_name,
                proxy=self._access.proxy,
                **options,
            ) as response:
                answered = True
                self._on_request(request.verb, request.plural, response.status)
                yield response
        finally:
            if not answered:
                self._on_request(request.verb, request.plural, 0)

    async def _check(self, request: Request, response: aiohttp.ClientResponse) -> None:
        if response.status < http.HTTPStatus.MULTIPLE_CHOICES:
            return
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes just as the body is complete.
            async with asyncio.timeout(self._deadline_s):
                status = await self._answer(request, response)
        except Unreachable:
            status = {}
        raise api_error(
            status,
            code=response.status,
            call=str(request),
            retry_after_s=_seconds(response.headers.get("Retry-After")),
        )


def retry_delay_s(error: KubeError, *, attempt: int, backoff: FullJitter) -> float:
    """Our backoff, and never sooner than the server asks."""
    asked = getattr(error, "retry_after_s", None)
    return max(backoff.delay_s(attempt), float(asked or 0.0))


@contextmanager
def _as_unreachable(request: Request) -> Generator[None, None, None]:
    try:
        yield
    except TimeoutError:
        raise Unreachable(f"{request}: no answer within the deadline") from None
    except (ssl.SSLError, TlsUnusable) as error:
        raise Unreachable(f"{request}: TLS failed: {error}") from None
    except AccessError as error:
        raise Unreachable(f"{request}: {error}") from None
    except (aiohttp.ClientError, ConnectionError, ValueError) as error:
        raise Unreachable(f"{request}: {type(error).__name__}: {error}") from None


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdigit() else None
