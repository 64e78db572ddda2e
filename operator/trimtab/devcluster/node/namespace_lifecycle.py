"""What a controller manager does for namespaces: what each begins with, and emptying those that are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS, Object, Resource

_log = structlog.get_logger(__name__)
_FINALIZER = "kubernetes"
_AGAIN_S = 2.0
_BACKOFF = FullJitter(base_s=1.0, cap_s=2.0)
ROOT_CA_CONFIG_MAP = "kube-root-ca.crt"


class NamespaceLifecycle:
    def __init__(self, client: KubeClient, namespaces: Reflector, *, authority: str) -> None:
        self._client = client
        self._namespaces = namespaces
        self._authority = authority
        self._emptying: dict[str, asyncio.Task[None]] = {}
        self._furnished: set[str] = set()

    async def run(self) -> None:
        changes = self._namespaces.changes()
        loop = asyncio.get_running_loop()
        try:
            async for key in changes:
                namespace = self._namespaces.get(key)
                if namespace is None:
                    self._emptying.pop(key.name, None)
                    self._furnished.discard(key.name)
                elif "deletionTimestamp" not in namespace["metadata"]:
                    if not await self._furnished_now(key.name):
                        loop.call_later(_AGAIN_S, changes.add, key)
                elif key.name not in self._emptying:
                    self._emptying[key.name] = asyncio.create_task(self._end(key.name))
        finally:
            for task in self._emptying.values():
                task.cancel()

    async def _furnished_now(self, name: str) -> bool:
        """The default service account, and the authority that pods check the API server against. False: not yet."""
        if name in self._furnished:
            return True
        bodies: list[tuple[Resource, Object]] = [
            (SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}),
            (CONFIG_MAPS, {"metadata": {"name": ROOT_CA_CONFIG_MAP}, "data": {"ca.crt": self._authority}}),
        ]
        try:
            for resource, body in bodies:
                try:
                    await self._client.create(resource, body, namespace=name)
                except AlreadyExists:
                    continue
        except (NotFound, Forbidden):
            return True  # the namespace is going already, and needs nothing
        except KubeError as error:
            _log.warning("namespace_not_furnished", namespace=name, error=str(error))
            return False
        self._furnished.add(name)
        return True

    async def _end(self, name: str) -> None:
        """Everything in it is deleted; when nothing is left, the namespace may go."""
        attempt = 0
        while True:
            try:
                if await self._emptied(name):
                    await self._finalize(name)
                    return
            except (NotFound, Conflict):
                pass
            except KubeError as error:
                _log.warning("namespace_not_emptied", namespace=name, error=str(error))
            await asyncio.sleep(_BACKOFF.delay_s(attempt))
            attempt += 1
            if await self._is_gone(name):
                return

    async def _emptied(self, name: str) -> bool:
        left = 0
        for resource in await self._namespaced_kinds():
            items = (await self._client.list(resource, namespace=name)).items
            left += len(items)
            for item in items:
                if "deletionTimestamp" in item["metadata"]:
                    continue
                try:
                    await self._client.delete(
                        resource, item["metadata"]["name"], namespace=name, propagation="Background"
                    )
                except NotFound:
                    continue
        return left == 0

    async def _finalize(self, name: str) -> None:
        namespace = await self._client.get(NAMESPACES, name)
        kept = [finalizer for finalizer in namespace["spec"].get("finalizers") or () if finalizer != _FINALIZER]
        namespace["spec"]["finalizers"] = kept
        await self._client.replace(NAMESPACES, name, namespace, subresource="finalize")

    async def _is_gone(self, name: str) -> bool:
        try:
            return await self._client.get_or_none(NAMESPACES, name) is None
        except KubeError:
            return False

    async def _namespaced_kinds(self) -> list[Resource]:
        """Whatever the API server serves, in the version it prefers."""
        groups = (await self._client.raw_get("/apis"))["groups"]
        versions = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
        kinds: list[Resource] = []
        for path in versions:
            kinds += _deletable(await self._client.raw_get(path))
        return kinds


def _deletable(listing: Object) -> Iterator[Resource]:
    group, _, version = str(listing["groupVersion"]).rpartition("/")
    for entry in listing["resources"]:
        if entry["namespaced"] and "/" not in entry["name"] and {"list", "delete"} <= set(entry["verbs"]):
            yield Resource(group=group, version=version, plural=entry["name"], kind=entry["kind"])
