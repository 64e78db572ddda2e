"""An HTTP server that answers with what the test put into its script: for faults a real API server cannot be made to
show on demand. What a real one does is tested in tests/cluster/kube.
"""

from __future__ import annotations

import datetime
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.tls import ClientTls
from trimtab.kube.access import ClusterAccess, fixed_token
from trimtab.kube.certificates import CertificateAuthority

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FaultServer:
    """Answers requests in the order of the script; a request beyond its end is the test's failure."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.query)))
        self.headers.append(dict(request.headers))
        if not self.script:
            return web.json_response({"message": "the script is over"}, status=418)
        return await self.script.pop(0)(request)


def answer(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return respond


def refusal(code: int, reason: str = "", *, headers: dict[str, str] | None = None) -> Answer:
    return answer(
        {"kind": "Status", "code": code, "reason": reason, "message": "scripted"}, status=code, headers=headers
    )


def broken_connection() -> Answer:
    async def respond(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return respond


def listed(*names: str, version: str, proceed: str = "") -> Answer:
    items = [pod(name, version=version) for name in names]
    return answer({"metadata": {"resourceVersion": version, "continue": proceed}, "items": items})


def pod(name: str, *, version: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "resourceVersion": version, "uid": f"uid-{name}", "managedFields": [{}]}
    return {"metadata": metadata}


def event(kind: str, name: str, *, version: str) -> bytes:
    return json.dumps({"type": kind, "object": pod(name, version=version)}).encode() + b"\n"


def expired() -> bytes:
    return failed(410, "Expired")


def failed(code: int, reason: str) -> bytes:
    """An error amid the events of a watch."""
    return json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": reason}}).encode() + b"\n"


def streamed(*chunks: bytes, abort: bool = False, until: Callable[[], Awaitable[Any]] | None = None) -> Answer:
    """A watch's answer; it ends regularly, by a reset, or when `until` returns."""

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if until is not None:
            await until()
        if abort:
            assert request.transport is not None
            request.transport.abort()
        return response

    return respond


@asynccontextmanager
async def fault_server(folder: Path) -> AsyncGenerator[tuple[FaultServer, ClusterAccess], None]:
    authority = CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))
    certificate, key = authority.server("127.0.0.1").write(folder, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = FaultServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    trusting = ClientTls(authority=authority.pair.certificate)
    try:
        yield server, ClusterAccess(server=f"https://127.0.0.1:{port}", tls=trusting, token=fixed_token("secret-token"))
    finally:
        await runner.cleanup()


QUICK = FullJitter(base_s=0.001, cap_s=0.01)
