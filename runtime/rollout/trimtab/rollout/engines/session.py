"""The HTTP connections of a client to its engine, and one exchange over them: a deadline, a bound on what is read, and
typed errors.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from trimtab.fabric.tls import ClientTls, TlsUnusable
from trimtab.rollout.engines.contract import EngineError, EngineTimeout, EngineUnavailable

# Less than the 5 s after which SGLang's server closes an idle connection: who reuses one at that moment meets its end.
_IDLE_CONNECTION_S = 2.0
_MAX_ANSWER_BYTES = 256 << 20
"""The likeliest twenty tokens at each of 32,768 places, as text, are a tenth of it."""
_READ_BYTES = 1 << 20
_EVENT_END = b"\n\n"
_NO_MORE = b"[DONE]"

Refused = Callable[[aiohttp.ClientResponse, str], EngineError]
"""What an answer with a status of 400 or more means, given its text."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    called: str
    """How errors name the request."""
    content_type: str
    body: bytes

    def document(self) -> dict[str, Any]:
        """Of an answer in JSON."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            # Not what it says: an endpoint may quote a key.
            raise EngineError(f"{self.called} did not answer with JSON: {type(error).__name__}") from None
        if not isinstance(document, dict):
            raise EngineError(f"{self.called} answered with a {type(document).__name__}")
        return document


class EngineSession:
    """The HTTP connections of a client to its engine. No limit on connections: concurrency is bounded by the worker,
    and a pause must get through a full pool. No timeout of its own either: every call brings its deadline. It outlives
    the engine: the next engine at the same address is asked over new connections.
    """

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._tls = ClientTls()

    def _trust(self, url: str) -> ssl.SSLContext | bool:
        """What a request to the URL is sent with, so that a renewed authority is used; raises TlsUnusable."""
        return self._tls.context() if url.startswith("https:") else True

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _exchange(
        self, method: str, url: str, *, called: str, refused: Refused, timeout_s: float, **request: Any
    ) -> Answer:
        async with self._answering(
            method, url, called=called, refused=refused, timeout_s=timeout_s, **request
        ) as response:
            return await _whole(response, called=called)

    async def _follow(
        self,
        method: str,
        url: str,
        *,
        called: str,
        refused: Refused,
        timeout_s: float,
        take: Callable[[dict[str, Any]], None],
        **request: Any,
    ) -> None:
        """As `_exchange`, for an answer that comes as server-sent events: each is given to `take` when it is there. A
        server that answers all at once gives one.
        """
        async with self._answering(
            method, url, called=called, refused=refused, timeout_s=timeout_s, **request
        ) as response:
            if response.content_type != "text/event-stream":
                take((await _whole(response, called=called)).document())
                return
            async for event in _events(response, called=called):
                take(event.document())

    @asynccontextmanager
    async def _answering(
        self, method: str, url: str, *, called: str, refused: Refused, timeout_s: float, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, url, ssl=self._trust(url), **request) as response,
            ):
                if response.status >= 400:
                    body = await _read(response, called=called)
                    raise refused(response, body.decode(errors="replace"))
                yield response
        except TimeoutError:
            raise EngineTimeout(f"{called} did not answer within {timeout_s:.3g} s") from None
        except (aiohttp.ClientError, TlsUnusable) as error:
            raise EngineUnavailable(f"{called}: {self._shown(str(error)) or type(error).__name__}") from None

    def _shown(self, text: str) -> str:
        """What may be repeated of a text that came with an answer."""
        return text


async def _read(response: aiohttp.ClientResponse, *, called: str) -> bytes:
    """Counted as it comes out of its compression: a small answer can become a large one."""
    body = bytearray()
    async for part in response.content.iter_chunked(_READ_BYTES):
        body += part
        if len(body) > _MAX_ANSWER_BYTES:
            raise EngineError(f"{called} answered with more than {_MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


async def _whole(response: aiohttp.ClientResponse, *, called: str) -> Answer:
    return Answer(called=called, content_type=response.content_type, body=await _read(response, called=called))


async def _events(response: aiohttp.ClientResponse, *, called: str) -> AsyncIterator[Answer]:
    """Until the server says that there are no more, or its answer ends."""
    held = bytearray()
    async for part in response.content.iter_any():
        held += part
        if len(held) > _MAX_ANSWER_BYTES:
            raise EngineError(f"{called} sent an event of more than {_MAX_ANSWER_BYTES >> 20} MiB")
        if _EVENT_END not in held[-len(part) - len(_EVENT_END) + 1 :]:
            continue
        *whole, rest = bytes(held).split(_EVENT_END)
        held = bytearray(rest)
        for event in whole:
            data = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:")).strip()
            if data == _NO_MORE:
                return
            if data:
                yield Answer(called=called, content_type=response.content_type, body=data)
