"""kopf around the controller: signals, authentication, and watches whose events wake keys.

kopf keeps nothing on our objects: no finalizers, no annotations, no progress, no events of its own. It is not the
source of truth either, because it does not notice what was deleted while its watch was down; trimtab.kube's Reflectors
are, and a key that kopf wakes is looked up there.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import kopf
import structlog

from trimtab.fabric.bus.errors import BusError
from trimtab.kube.access import ClusterAccess
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Resource

_log = structlog.get_logger(__name__)
_TOKEN_LIFETIME = datetime.timedelta(minutes=5)
_WATCH_S = 300
# It waits five seconds itself for tasks that do not end.
_ENDS_WITHIN_S = 8.0

Wake = Callable[[str, Key], None]


async def run_kopf(
    access: ClusterAccess, *, namespaces: Sequence[str], wake: Wake, started: Callable[[], None]
) -> None:
    """Until SIGTERM or SIGINT, and then not much longer, whatever kopf still waits for."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    where: dict[str, Any] = {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
    told_to_stop = asyncio.Event()

    def ready() -> None:
        # In place of kopf's own handlers: a watch that is just being opened when the signal comes makes kopf wait for
        # the server's answer, which may never come, and the lease would not be given back.
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, told_to_stop.set)
        started()

    shell = asyncio.create_task(
        kopf.operator(
            registry=registry_for(access, wake=wake, started=ready),
            settings=_settings(),
            standalone=True,
            stop_flag=told_to_stop,
            **where,
        ),
        name="kopf",
    )
    told = asyncio.create_task(told_to_stop.wait())
    try:
        await asyncio.wait({shell, told}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({shell}, timeout=_ENDS_WITHIN_S)
        if shell.done():
            shell.result()
        else:
            _log.warning("kopf_does_not_end", waited_s=_ENDS_WITHIN_S)
    except (KubeError, BusError) as error:
        # At its end kopf raises whatever it finds in any task of the loop. Errors of these kinds are ours, and were
        # dealt with: an action that found nobody while we were told to go.
        _log.info("ended_during_an_error", error=str(error))
    finally:
        told.cancel()
        shell.cancel()


def registry_for(access: ClusterAccess, *, wake: Wake, started: Callable[[], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        headers = {} if access.token is None else {"Authorization": f"Bearer {access.token()}"}
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls, limit=0), headers=headers)
        # A token in a file is renewed there; kopf asks again when this is over.
        expires = None if access.token is None else datetime.datetime.now(datetime.UTC) + _TOKEN_LIFETIME
        return kopf.AiohttpSession(
            server=access.server, aiohttp_session=session, default_namespace=access.namespace, expiration=expires
        )

    @kopf.on.startup(registry=registry)
    async def startup(**_: Any) -> None:
        started()

    for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS):
        _wake_on_events(registry, resource, wake)
    return registry


def _wake_on_events(registry: kopf.OperatorRegistry, resource: Resource, wake: Wake) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=f"wake-{resource.plural}")
    async def changed(namespace: str | None, name: str | None, **_: Any) -> None:
        wake(resource.kind, Key(namespace or "", name or ""))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = _WATCH_S
    return settings
