"""One other cluster, as it is reached with one kubeconfig: its own task, timeouts and backoff, so that a cluster that
hangs holds up no other cluster.

A connection that is lost is thrown away with all it knew. The next one counts only when it has listed everything there
anew: an empty store of a connection that has just begun, or that has just broken, is never taken for an empty cluster.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.kube.access import ClusterAccess
from trimtab.kube.bounded_response import OTHERS_SERVER
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError, NotFound
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, PODS, SECRETS, Key, Object, Resource
from trimtab.kube.transport import RequestHook
from trimtab.operator.pods.credentials import JobCredentials
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.ownership import controller_uid
from trimtab.operator.reconcile.placement import Placement
from trimtab.operator.remote.kubeconfig import BAD, KubeConfigRefused, read_kubeconfig_beside
from trimtab.operator.remote.origin import HOME_POOL_UID, home_pool_of
from trimtab.operator.remote.outage import NO_KUBECONFIG, Outage, outage_by
from trimtab.operator.remote.sweep import sweep
from trimtab.operator.remote.transport import RemoteTransport
from trimtab.operator.settings import RemoteSettings

_log = structlog.get_logger(__name__)
# Asked for to see whether the cluster answers and knows us; it never exists.
_PROBE = "trimtab-probe"
# Of the time between probes, for how long a watch may fail while the cluster answers otherwise.
_WATCHES_FAIL_FOR = 4


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A cluster that answers, and all that is ours there."""

    client: KubeClient
    pods: ObjectCache
    config_maps: ObjectCache
    credentials: dict[str, JobCredentials] = field(default_factory=dict)
    """Those that are stored there, by the uid of the anchor they belong to."""


class HomeAway(Exception):
    """The Secret could not be read, which says nothing about the other cluster."""


class Link:
    """`connection` while the cluster can be reached, else `outage`; neither while that is not known yet."""

    def __init__(
        self,
        home: KubeClient,
        placement: Placement,
        *,
        settings: RemoteSettings,
        installation: str,
        wake_pool: Callable[[Key], None],
        changed: Callable[[Placement], None],
        on_request: RequestHook,
    ) -> None:
        self.placement = placement
        self.connection: Connection | None = None
        self.outage: Outage | None = None
        self.turns = asyncio.Semaphore(settings.calls_per_cluster)
        self._home = home
        self._settings = settings
        self._installation = installation
        self._wake_pool = wake_pool
        self._changed = changed
        self._on_request = on_request
        self._backoff = FullJitter(base_s=settings.retry_s, cap_s=settings.longest_retry_s)
        self._doubt = asyncio.Event()
        self._content = b""
        self._log = _log.bind(kubeconfig=placement.secret, home=placement.home, namespace=placement.namespace)

    def suspect(self) -> None:
        """A request had no answer: probe at once whether the cluster is still there."""
        self._doubt.set()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            before = self.outage
            try:
                self._content = await self._kubeconfig()
                async with self._connected(await read_kubeconfig_beside(self._content)) as connection:
                    failures = 0
                    self._found(connection)
                    await self._watch_over(connection)
            except HomeAway as error:
                self._log.warning("kubeconfig_not_read", error=str(error))
            except KubeConfigRefused as refused:
                self._note_outage(Outage(reason=refused.reason, message=str(refused)))
            except (KubeError, TimeoutError) as error:
                self._note_outage(outage_by(error, namespace=self.placement.namespace))
            else:
                self._log.info("kubeconfig_changed")
                self.connection = None
                continue
            if self.outage != before:
                # It may be on its way back: an API server that has just started answers, and forbids everything.
                failures = 0
            changed = await self._changed_within(self._backoff.delay_s(failures))
            failures = 0 if changed else failures + 1

    async def _kubeconfig(self) -> bytes:
        where = self.placement
        try:
            secret = await self._home.get(SECRETS, where.secret, namespace=where.home)
        except NotFound:
            raise KubeConfigRefused(NO_KUBECONFIG, f"there is no Secret {where.secret} in this namespace") from None
        except KubeError as error:
            raise HomeAway(str(error)) from None
        encoded = (secret.get("data") or {}).get(where.key)
        if encoded is None:
            raise KubeConfigRefused(NO_KUBECONFIG, f"Secret {where.secret} has no key {where.key}")
        try:
            return base64.b64decode(encoded)
        except binascii.Error:
            raise KubeConfigRefused(BAD, f"Secret {where.secret}, key {where.key}: is no base64") from None

    @asynccontextmanager
    async def _connected(self, access: ClusterAccess) -> AsyncIterator[Connection]:
        """After both lists are complete. Raises KubeError or TimeoutError."""
        settings = self._settings
        client = KubeClient(
            access,
            user_agent="trimtab-operator",
            on_request=self._on_request,
            deadline_s=settings.deadline_s,
            limits=OTHERS_SERVER,
            transport=RemoteTransport,
        )
        async with client:
            # First what fails at once and with a reason, where reflectors would go on trying.
            await self._probe(client)
            reflectors = {resource: self._reflector(client, resource) for resource in (PODS, CONFIG_MAPS)}
            reflectors[PODS].listen(self._pod_changed)
            views = {
                resource: ObjectCache(resource, {None: reflector}, index=_by_controller, clock=time.monotonic)
                for resource, reflector in reflectors.items()
            }
            connection = Connection(client=client, pods=views[PODS], config_maps=views[CONFIG_MAPS])
            tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors.values()]
            try:
                for reflector in reflectors.values():
                    await reflector.synced(timeout_s=settings.deadline_s)
                tasks.append(asyncio.create_task(self._sweep(connection)))
                yield connection
            finally:
                self.connection = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _reflector(self, client: KubeClient, resource: Resource) -> Reflector:
        return Reflector(client, resource, namespace=self.placement.namespace, label_selector=HOME_POOL_UID)

    async def _changed_within(self, delay_s: float) -> bool:
        """Waits before the next attempt, but not with a kubeconfig that is another one by now."""
        end = time.monotonic() + delay_s
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._settings.reread_s))
            try:
                if await self._kubeconfig() != self._content:
                    return True
            except (HomeAway, KubeConfigRefused):
                continue
        return False

    async def _watch_over(self, connection: Connection) -> None:
        """Until the kubeconfig changes; raises when the cluster no longer answers."""
        settings = self._settings
        read_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(settings.probe_s):
                    await self._doubt.wait()
            except TimeoutError:
                pass  # time for the next probe anyway
            self._doubt.clear()
            await self._probe(connection.client)
            self._check_watches(connection)
            if time.monotonic() - read_at >= settings.reread_s:
                read_at = time.monotonic()
                try:
                    if await self._kubeconfig() != self._content:
                        return
                except HomeAway:
                    continue

    def _check_watches(self, connection: Connection) -> None:
        """A cluster that answers and lets us see nothing is no better than one that is silent."""
        for reflector in (*connection.pods.reflectors, *connection.config_maps.reflectors):
            silent_s = time.monotonic() - (reflector.last_contact or 0.0)
            if reflector.failure is not None and silent_s > _WATCHES_FAIL_FOR * self._settings.probe_s:
                raise reflector.failure

    async def _probe(self, client: KubeClient) -> None:
        await client.get_or_none(CONFIG_MAPS, _PROBE, namespace=self.placement.namespace)

    async def _sweep(self, connection: Connection) -> None:
        while True:
            try:
                await sweep(
                    connection.config_maps,
                    there=connection.client,
                    home=self._home,
                    home_namespace=self.placement.home,
                    installation=self._installation,
                )
            except KubeError as error:
                self._log.warning("sweep_interrupted", error=str(error))
            await asyncio.sleep(self._settings.sweep_s)

    def _found(self, connection: Connection) -> None:
        self._log.info("cluster_reachable")
        self.connection, self.outage = connection, None
        self._changed(self.placement)

    def _note_outage(self, outage: Outage) -> None:
        self.connection = None
        if outage != self.outage:
            self._log.warning("cluster_unreachable", reason=outage.reason, message=outage.message)
            self.outage = outage
            self._changed(self.placement)

    def _pod_changed(self, key: Key, before: Object | None, after: Object | None) -> None:
        pod = after or before
        pool = None if pod is None else home_pool_of(pod, home_namespace=self.placement.home)
        if pool is not None and self.connection is not None:
            self._wake_pool(pool)


def _by_controller(item: Object) -> Iterable[str | None]:
    return (controller_uid(item),)
