"""kopf beside the controller: authentication, and watches whose events wake keys.

kopf keeps nothing on our objects: no finalizers, no annotations, no progress, no events of its own. It is not the
source of truth either, because it does not notice what was deleted while its watch was down; trimtab.kube's Reflectors
are, and a key that kopf wakes is looked up there.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import kopf
import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.fabric.restarts import RestartPolicy
from trimtab.kube.access import ClusterAccess
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Resource

_log = structlog.get_logger(__name__)
_LOGIN_LIFETIME = datetime.timedelta(minutes=5)
_WATCH_S = 300
# It waits five seconds itself for tasks that do not end.
_ENDS_WITHIN_S = 8.0
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=1.0, cap_s=30.0), stable_s=60.0)
"""Whoever lived that long does not fail again and again."""

Wake = Callable[[str, Key], None]


async def run_kopf(
    access: ClusterAccess,
    *,
    namespaces: Sequence[str],
    wake: Wake,
    told_to_stop: asyncio.Event,
    ends_within_s: float = _ENDS_WITHIN_S,
    restarts: RestartPolicy = _RESTARTS,
) -> None:
    """Until it is told to stop, and then not much longer, whatever kopf still waits for.

    kopf has a loop and a thread of its own. When it fails, as it does of a watch that is refused with 410, it cancels
    every task of its loop, not only its own. When it has ended, it is started again. It may also wait for one of
    those tasks for ever: then the Reflectors, which wake the same keys, go on alone.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns that signals do not reach this thread. They are not meant to.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    told = asyncio.create_task(told_to_stop.wait())
    crashes = 0

    def wake_from_there(kind: str, key: Key) -> None:
        loop.call_soon_threadsafe(wake, kind, key)

    try:
        while True:
            life = _KopfLife(access, namespaces, wake_from_there)
            began = loop.time()
            shell = asyncio.create_task(in_daemon_thread(life.live, name="kopf"))
            await asyncio.wait({shell, told}, return_when=asyncio.FIRST_COMPLETED)
            if told_to_stop.is_set():
                break
            now = loop.time()
            again = restarts.again(crashes, lived_s=now - began, now=now)
            crashes, delay_s = again.crashes, again.wait_s(now)
            _log.warning("kopf_ended", error=repr(shell.exception()), again_in_s=round(delay_s, 1))
            await asyncio.wait({told}, timeout=delay_s)
            if told_to_stop.is_set():
                return
        life.end()
        await asyncio.wait({shell}, timeout=ends_within_s)
        if not shell.done():
            _log.warning("kopf_does_not_end", waited_s=ends_within_s)
    finally:
        told.cancel()
        shell.cancel()


class _KopfLife:
    """kopf from its start to its end."""

    def __init__(self, access: ClusterAccess, namespaces: Sequence[str], wake: Wake) -> None:
        self._access = access
        self._where: dict[str, Any] = {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
        self._wake = wake
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def live(self) -> None:
        """In the thread that is to be kopf's."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(
                kopf.operator(
                    registry=registry_for(self._access, wake=self._wake),
                    settings=_settings(),
                    standalone=True,
                    stop_flag=self._stop,
                    **self._where,
                )
            )

    def end(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)


def registry_for(access: ClusterAccess, *, wake: Wake) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        headers = {} if access.token is None else {"Authorization": f"Bearer {await access.token()}"}
        connector = aiohttp.TCPConnector(ssl=access.tls.context(), limit=0)
        session = aiohttp.ClientSession(connector=connector, headers=headers)
        # Tokens and authorities in files are renewed there; kopf asks again when this is over.
        expires = datetime.datetime.now(datetime.UTC) + _LOGIN_LIFETIME
        return kopf.AiohttpSession(
            server=access.server, aiohttp_session=session, default_namespace=access.namespace, expiration=expires
        )

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
    # Otherwise a kopf that does not come to its end kills the process ten minutes later.
    settings.process.ultimate_exiting_timeout = None
    return settings
