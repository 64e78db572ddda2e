"""The HTTP connections of a client to its engine, and one exchange over them: a deadline, a bound on what is read, and
typed errors.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
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
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, url, ssl=self._trust(url), **request) as response,
            ):
                body = await _read(response, called=called)
                if response.status >= 400:
                    raise refused(response, body.decode(errors="replace"))
                return Answer(called=called, content_type=response.content_type, body=body)
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
