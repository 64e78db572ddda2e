"""The part of a kubelet's HTTPS API that `kubectl logs` needs; only the API server's own certificate is let in."""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from trimtab.devcluster.container.log import LogOptions, instance_file, read_log
from trimtab.devcluster.node.kubelet import Kubelet
from trimtab.devcluster.pod.spec import containers
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.certificates import KUBELET_CLIENT
from trimtab.kube.resources import Key, Object
from trimtab.kube.timestamps import epoch

_log = structlog.get_logger(__name__)


def server_tls(*, certificate: Path, key: Path, client_authority: Path) -> ssl.SSLContext:
    """Without a client certificate of our authority there is no connection."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client_authority))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class KubeletApi:
    def __init__(self, kubelet: Kubelet, *, tls: ssl.SSLContext, port: int) -> None:
        self._kubelet = kubelet
        application = web.Application(middlewares=[_only_the_api_server])
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        application.router.add_route("*", "/{rest:.*}", _unsupported)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        self._tls = tls
        self._port = port

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self._port, ssl_context=self._tls).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        namespace, name, container = (request.match_info[part] for part in ("namespace", "pod", "container"))
        pod = self._kubelet.pods.get(Key(namespace, name))
        if pod is None or container not in {own["name"] for _, own in containers(pod)}:
            raise web.HTTPNotFound(text=f'container "{container}" of pod "{name}" is not on this node')
        instance = _instance(pod, container) - (request.query.get("previous") == "true")
        path = instance_file(self._kubelet.log_folder(pod, container), instance)
        if not path.exists():
            raise web.HTTPBadRequest(text=_why_no_log(pod, container, request))
        try:
            options = _options(request)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)

        def alive() -> bool:
            return self._kubelet.runs(pod, container, instance=instance)

        try:
            async for piece in read_log(path, options, alive=alive):
                await response.write(piece)
        except ConnectionError:
            _log.debug("log_reader_left", pod=name)
        return response


def _status(pod: Object, container: str) -> dict[str, Any]:
    status = pod.get("status") or {}
    statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return next((entry for entry in statuses if entry["name"] == container), {})


def _instance(pod: Object, container: str) -> int:
    return int(_status(pod, container).get("restartCount") or 0)


def _why_no_log(pod: Object, container: str, request: web.Request) -> str:
    which = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
    if request.query.get("previous") == "true":
        return f"previous terminated {which} not found"
    waiting = (_status(pod, container).get("state") or {}).get("waiting") or {}
    return f"{which} is waiting to start: {waiting.get('message') or waiting.get('reason') or 'ContainerCreating'}"


def _options(request: web.Request) -> LogOptions:
    query = request.query

    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    since: float | None = None
    seconds = number("sinceSeconds")
    if seconds is not None:
        since = time.time() - seconds
    elif "sinceTime" in query:
        since = epoch(query["sinceTime"])
    return LogOptions(
        follow=query.get("follow") == "true",
        tail_lines=number("tailLines"),
        since=since,
        timestamps=query.get("timestamps") == "true",
        limit_bytes=number("limitBytes"),
    )


@web.middleware
async def _only_the_api_server(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every user of the cluster has a certificate of the same authority; only the API server checks their rights."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    names = {
        value for entry in (certificate or {}).get("subject", ()) for field, value in entry if field == "commonName"
    }
    if names != {KUBELET_CLIENT}:
        raise web.HTTPForbidden(text="only the API server may ask this node")
    return await handler(request)


async def _unsupported(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotImplemented(
        text=f"{request.path.split('/')[1]} is not supported on the development node: its pods are plain processes"
    )
