"""Deletes what belongs to objects that are gone: a controller manager's garbage collector, for the kinds we use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import structlog

from trimtab.devcluster.container.restarts import BACKOFF
from trimtab.devcluster.node.ownership import (
    FOREGROUND,
    ORPHAN,
    Delete,
    DropReferences,
    Keep,
    Owner,
    blocks,
    is_waiting,
    verdict,
)
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Conflict, KubeError, NotFound
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import (
    CONFIG_MAPS,
    LEASES,
    PODS,
    RLJOBS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICES,
    TRAINERS,
    Key,
    Object,
    Resource,
)

_log = structlog.get_logger(__name__)
COLLECTED: Sequence[Resource] = (PODS, CONFIG_MAPS, SECRETS, SERVICES, LEASES, RLJOBS, TRAINERS, ROLLOUT_POOLS)


class _Item(NamedTuple):
    resource: Resource
    key: Key


class GarbageCollector:
    def __init__(self, client: KubeClient, stores: Sequence[Reflector]) -> None:
        self._client = client
        self._stores = {store.resource: store for store in stores}
        self._items: dict[str, _Item] = {}
        self._dependants: dict[str, set[_Item]] = {}
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._queued: set[_Item] = set()
        for store in stores:
            self._follow(store)

    async def run(self) -> None:
        for store in self._stores.values():
            await store.synced(timeout_s=60.0)
        attempt = 0
        while True:
            item = await self._queue.get()
            self._queued.discard(item)
            try:
                await self._process(item)
                attempt = 0
            except (NotFound, Conflict):
                # Somebody was faster, or our copy is behind: the change that says so brings it here again.
                continue
            except KubeError as error:
                _log.warning("collection_failed", item=str(item.key), error=str(error))
                await asyncio.sleep(BACKOFF.delay_s(attempt))
                attempt += 1
                self._enqueue(item)

    def _follow(self, store: Reflector) -> None:
        def changed(key: Key, before: Object | None, after: Object | None) -> None:
            item = _Item(store.resource, key)
            for uid in _owner_uids(before):
                self._dependants.get(uid, set()).discard(item)
            for uid in _owner_uids(after):
                self._dependants.setdefault(uid, set()).add(item)
            if before is not None and (after is None or after["metadata"]["uid"] != before["metadata"]["uid"]):
                self._items.pop(before["metadata"]["uid"], None)
                self._enqueue(*self._dependants.get(before["metadata"]["uid"], ()))
                self._enqueue(*self._waiting_owners(before))
            if after is not None:
                self._items[after["metadata"]["uid"]] = item
                self._enqueue(item)
                if "deletionTimestamp" in after["metadata"]:
                    self._enqueue(*self._dependants.get(after["metadata"]["uid"], ()))

        store.listen(changed)

    def _enqueue(self, *items: _Item) -> None:
        for item in items:
            if item not in self._queued:
                self._queued.add(item)
                self._queue.put_nowait(item)

    def _waiting_owners(self, item: Object) -> Iterator[_Item]:
        """Owners whose foreground deletion may have waited for the item."""
        yield from (self._items[uid] for uid in _owner_uids(item) if uid in self._items)

    async def _process(self, item: _Item) -> None:
        found = self._stores[item.resource].get(item.key)
        if found is None:
            return
        finalizers = found["metadata"].get("finalizers") or ()
        if "deletionTimestamp" in found["metadata"]:
            if ORPHAN in finalizers:
                await self._orphan(item, found)
            elif FOREGROUND in finalizers:
                await self._finish_foreground(item, found)
            return
        owners = {
            reference["uid"]: await self._owner(reference, namespace=item.key.namespace)
            for reference in found["metadata"].get("ownerReferences") or ()
        }
        match verdict(found, owners, has_dependants=bool(self._dependants.get(found["metadata"]["uid"]))):
            case Delete(propagation=propagation):
                await self._client.delete(
                    item.resource,
                    item.key.name,
                    namespace=item.key.namespace,
                    uid=found["metadata"]["uid"],
                    propagation=propagation,
                )
                _log.info("collected", kind=item.resource.kind, name=item.key.name, namespace=item.key.namespace)
            case DropReferences(uids=uids):
                await self._drop_references(item, found, uids)
            case Keep():
                pass

    async def _owner(self, reference: dict[str, Any], *, namespace: str) -> Owner:
        """As our copies have it; what they do not have is asked for, because a copy may be behind."""
        known = self._items.get(reference["uid"])
        owner = None if known is None else self._stores[known.resource].get(known.key)
        if owner is not None and owner["metadata"]["uid"] == reference["uid"]:
            return Owner.WAITING if is_waiting(owner) else Owner.PRESENT
        for resource in self._stores:
            if (resource.api_version, resource.kind) == (reference["apiVersion"], reference["kind"]):
                live = await self._client.get_or_none(resource, reference["name"], namespace=namespace)
                if live is None or live["metadata"]["uid"] != reference["uid"]:
                    return Owner.ABSENT
                return Owner.WAITING if is_waiting(live) else Owner.PRESENT
        return Owner.PRESENT  # of a kind that is not collected here: nothing is known against it

    async def _finish_foreground(self, item: _Item, found: Object) -> None:
        """Dependants first; the owner may go when none is left that it has to wait for."""
        uid = found["metadata"]["uid"]
        if any(True for _ in self._blocking(uid)):
            return
        for resource in self._stores:
            # Asked anew, because our copies may not have a dependant that was made a moment ago.
            live = await self._client.list(resource, namespace=item.key.namespace)
            if any(blocks(dependant, owner_uid=uid) for dependant in live.items):
                return
        await self._remove_finalizer(item, found, FOREGROUND)

    def _blocking(self, uid: str) -> Iterator[Object]:
        for dependant in self._dependants.get(uid, ()):
            found = self._stores[dependant.resource].get(dependant.key)
            if found is not None and blocks(found, owner_uid=uid):
                yield found

    async def _orphan(self, item: _Item, found: Object) -> None:
        uid = found["metadata"]["uid"]
        for dependant in list(self._dependants.get(uid, ())):
            kept = self._stores[dependant.resource].get(dependant.key)
            if kept is not None:
                await self._drop_references(dependant, kept, frozenset({uid}))
        await self._remove_finalizer(item, found, ORPHAN)

    async def _drop_references(self, item: _Item, found: Object, uids: frozenset[str]) -> None:
        kept = [entry for entry in found["metadata"]["ownerReferences"] if entry["uid"] not in uids]
        await self._patch_metadata(item, found, {"ownerReferences": kept})

    async def _remove_finalizer(self, item: _Item, found: Object, finalizer: str) -> None:
        kept = [entry for entry in found["metadata"]["finalizers"] if entry != finalizer]
        await self._patch_metadata(item, found, {"finalizers": kept})

    async def _patch_metadata(self, item: _Item, found: Object, fields: dict[str, Any]) -> None:
        """Only on the very version that was looked at: lists are replaced as a whole."""
        metadata = {**fields, "uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]}
        await self._client.patch(item.resource, item.key.name, {"metadata": metadata}, namespace=item.key.namespace)


def _owner_uids(item: Object | None) -> list[str]:
    if item is None:
        return []
    return [reference["uid"] for reference in item["metadata"].get("ownerReferences") or ()]
