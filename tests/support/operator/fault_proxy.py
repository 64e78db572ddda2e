"""Between a client and the real API server: refuses requests, loses answers, cuts watches and forgets their versions,
at random. What gets through is done by the real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import Counter
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK, free_ports
from trimtab.kube.access import ClusterAccess

_PASSED_ON = ("Content-Type", "Accept", "User-Agent")
_REFUSALS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


class FaultProxy:
    """Whoever talks to it acts upstream with the rights of `access`."""

    def __init__(
        self, plane: ControlPlane, access: ClusterAccess, *, folder: Path, share: float, chance: random.Random
    ) -> None:
        self._access = access
        self._share = share
        self._chance = chance
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = plane.serving_certificate(user="proxy", folder=folder)
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate, key)
        (self._port,) = free_ports(1)
        self.faults: Counter[str] = Counter()

    @property
    def server(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._access.tls.context(), limit=0), auto_decompress=False
        )
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self._port, ssl_context=self._tls).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answered(request)
        except (aiohttp.ClientError, ConnectionError):
            # The server is down, or the client has left.
            return self._hung_up(request)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") == "true"
        fault = self._chance.random() < self._share
        if fault and watching:
            return self._refused(self._chance.choice((410, 429, 500)))
        if fault and request.method != "GET" and self._chance.random() < 0.4:
            # Done, and nobody hears of it.
            await self._forward(request)
            self.faults["lost answer"] += 1
            return self._hung_up(request)
        if fault:
            return self._refused(
                self._chance.choice((409, 429, 500, 503) if request.method != "GET" else (429, 500, 503))
            )
        return await self._watched(request) if watching else await self._forward(request)

    def _refused(self, code: int) -> web.Response:
        self.faults[str(code)] += 1
        reason = _REFUSALS.get(code, "Expired")
        headers = {"Retry-After": "1"} if code == 429 else {}
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
        return web.json_response({**status, "message": "injected by the test"}, status=code, headers=headers)

    async def _forward(self, request: web.Request) -> web.Response:
        async with await self._upstream(request) as answer:
            body = await answer.read()
            headers = {
                name: answer.headers[name] for name in ("Content-Type", "Content-Encoding") if name in answer.headers
            }
            return web.Response(status=answer.status, body=body, headers=headers)

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        """Passed on for a few seconds at most, then cut without a word."""
        response = web.StreamResponse()
        async with await self._upstream(request) as answer:
            response.set_status(answer.status)
            await response.prepare(request)
            with contextlib.suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
                async with asyncio.timeout(self._chance.uniform(0.5, 8.0)):
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
            self.faults["cut watch"] += 1
            self._hung_up(request)
        return response

    def _hung_up(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.close()
        return web.Response()

    async def _upstream(self, request: web.Request) -> aiohttp.client._RequestContextManager:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        if self._access.token is not None:
            headers["Authorization"] = f"Bearer {await self._access.token()}"
        return self._session.request(
            request.method,
            self._access.server + request.path_qs,
            data=request.content if request.can_read_body else None,
            headers=headers,
        )
