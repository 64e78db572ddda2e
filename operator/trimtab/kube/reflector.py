"""A local copy of one kind's objects that follows the API server: list, watch, list again where a watch cannot go on.

After each list the copy is pruned of what is no longer there, so objects deleted while we were cut off do not linger.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Gone, KubeError, Unreachable
from trimtab.kube.resources import Key, Object, Resource, key_of
from trimtab.kube.transport import retry_delay_s
from trimtab.kube.watch import IDLE_S, Change, ChangeType, watch

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=0.5, cap_s=30.0)
_SHORT_WATCH_S = 1.0

Listener = Callable[[Key, Object | None, Object | None], None]
"""Told of a change at once and in order: key, the object before, the object after; None where there is none."""


class Changes:
    """Keys that changed, each once however often it did since it was taken: the store says what is true now."""

    def __init__(self) -> None:
        self._pending: dict[Key, None] = {}
        self._some = asyncio.Event()

    def add(self, *keys: Key) -> None:
        self._pending.update(dict.fromkeys(keys))
        self._some.set()

    def take_all(self) -> list[Key]:
        """What has changed and was not taken yet; it does not wait."""
        keys = list(self._pending)
        self._pending.clear()
        return keys

    async def next(self) -> Key:
        """Waits as long as nothing changes; wrap it in asyncio.timeout to do something else meanwhile."""
        while not self._pending:
            self._some.clear()
            await self._some.wait()
        key = next(iter(self._pending))
        del self._pending[key]
        return key

    def __aiter__(self) -> AsyncIterator[Key]:
        return self

    async def __anext__(self) -> Key:
        return await self.next()


class Reflector(Mapping[Key, Object]):
    """The store, read like a dict; `run` keeps it up to date until it is cancelled.

    Objects come without metadata.managedFields, which is half of their size and not needed here. Readers must not
    change them.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page: int = 500,
        backoff: FullJitter = _BACKOFF,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self._client = client
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._page = page
        self._backoff = backoff
        self._idle_s = idle_s
        self._clock = clock
        self._objects: dict[Key, Object] = {}
        self._listeners: list[Listener] = []
        self._synced = asyncio.Event()
        self._version: str | None = None
        self._changes_seen = 0
        self.last_contact: float | None = None
        """When the server last said anything, by `clock`: for a probe that notices a silent death."""
        self.failure: KubeError | None = None
        """What keeps the store from being up to date; None while all is well."""

    def __getitem__(self, key: Key) -> Object:
        return self._objects[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def is_synced(self) -> bool:
        """Whether the first list has come in. Before that, an absent key says nothing."""
        return self._synced.is_set()

    async def synced(self, *, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._synced.wait()
        except TimeoutError:
            raise self.failure or TimeoutError(f"{self.resource.plural} not listed within {timeout_s} s") from None

    @property
    def version(self) -> int | None:
        """Up to which changes have come, in the server's count; None while that is not known."""
        return int(self._version) if self._version is not None and self._version.isdecimal() else None

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def changes(self) -> Changes:
        """Keys that change from now on, and first those that are here already."""
        changes = Changes()
        changes.add(*self._objects)
        self.listen(lambda key, before, after: changes.add(key))
        return changes

    async def run(self) -> None:
        failures = 0
        while True:
            began = self._clock()
            seen = self._changes_seen
            error = await self._list_and_follow()
            # A list alone is no progress: a watch that is refused after each list must not become a tight loop.
            progressed = self._changes_seen > seen or self._clock() - began > _SHORT_WATCH_S
            if progressed:
                failures = 0
            if isinstance(error, Gone):
                self._version = None
            if error is not None and not isinstance(error, Gone):
                if self.failure is None:
                    _log.warning("watch_interrupted", resource=self.resource.plural, error=str(error))
                self.failure = error
                await asyncio.sleep(retry_delay_s(error, attempt=failures, backoff=self._backoff))
            elif not progressed and failures > 0:
                await asyncio.sleep(self._backoff.delay_s(failures))
            failures += 1

    async def _list_and_follow(self) -> KubeError | None:
        """What ended it; None when the server ended the stream in the normal course."""
        try:
            if self._version is None:
                await self._list()
            await self._follow()
        except KubeError as error:
            return error
        return None

    async def _list(self) -> None:
        listed = await self._client.list(
            self.resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            page=self._page,
        )
        present = {key_of(item): item for item in listed.items}
        for key in [key for key in self._objects if key not in present]:
            self._put(key, None)
        for key, item in present.items():
            self._put(key, item)
        self._version = listed.resource_version
        self._heard()
        self._synced.set()

    async def _follow(self) -> None:
        assert self._version is not None
        stream = watch(
            self._client,
            self.resource,
            resource_version=self._version,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            idle_s=self._idle_s,
        )
        async with aclosing(stream):
            async for change in stream:
                self._take(change)

    def _take(self, change: Change) -> None:
        if change.type is not ChangeType.BOOKMARK:
            key = key_of(change.object)
            if len(self._objects) >= self._client.limits.objects and key not in self._objects:
                raise Unreachable(f"there are more than {self._client.limits.objects} {self.resource.plural}")
            self._put(key, None if change.type is ChangeType.DELETED else change.object)
        self._version = change.resource_version
        self._changes_seen += 1
        self._heard()

    def _put(self, key: Key, item: Object | None) -> None:
        before = self._objects.get(key)
        if item is None:
            if before is None:
                return
            del self._objects[key]
        else:
            item["metadata"].pop("managedFields", None)
            if before is not None and before["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]:
                return
            self._objects[key] = item
        for listener in self._listeners:
            try:
                listener(key, before, item)
            except Exception:  # noqa: BLE001 - what one object holds must not end the watch of all others
                _log.exception("listener_faulted", resource=self.resource.plural, **key._asdict())

    def replay(self, key: Key, item: Object | None) -> None:
        """A change as the watch would bring it."""
        self._put(key, item)

    def _heard(self) -> None:
        self.last_contact = self._clock()
        self.failure = None
