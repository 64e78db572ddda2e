"""The HTTP connections of whoever asks an engine."""

from __future__ import annotations

import ssl
from typing import Self

import aiohttp

from trimtab.fabric.tls import ClientTls

# Less than the 5 s after which SGLang's server closes an idle connection: who reuses one at that moment meets its end.
_IDLE_CONNECTION_S = 2.0


class EngineSession:
    """No limit on connections: concurrency is bounded by the worker, and a pause must get through a full pool. No
    timeout of its own either: every call brings its deadline. It outlives the engine: whoever listens there next is
    asked over new connections.
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
