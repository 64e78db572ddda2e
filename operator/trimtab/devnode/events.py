"""Events for `kubectl describe`: posted in the background, repeats counted, never in the way of anything."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

import structlog

from trimtab.devnode.timestamps import timestamp
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import EVENTS, Object

_log = structlog.get_logger(__name__)
_QUEUE = 1000
_REMEMBERED = 1000
_MESSAGE_LIMIT = 1000

EventType = Literal["Normal", "Warning"]


class EventRecorder:
    def __init__(self, client: KubeClient, *, component: str, host: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._source = {"component": component, "host": host}
        self._clock = clock
        self._queue: asyncio.Queue[tuple[Object, EventType, str, str, float]] = asyncio.Queue(_QUEUE)
        self._posted: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()

    def record(self, about: Object, kind: EventType, reason: str, message: str) -> None:
        """At once; when too many wait already it is dropped, as nothing may depend on events."""
        try:
            self._queue.put_nowait((about, kind, reason, message[:_MESSAGE_LIMIT], self._clock()))
        except asyncio.QueueFull:
            _log.warning("event_dropped", reason=reason)

    async def run(self) -> None:
        while True:
            about, kind, reason, message, when = await self._queue.get()
            try:
                await self._post(about, kind, reason, message, when)
            except KubeError as error:
                _log.debug("event_not_posted", reason=reason, error=str(error))

    async def _post(self, about: Object, kind: EventType, reason: str, message: str, when: float) -> None:
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        repeated = (str(metadata["uid"]), reason, message)
        if repeated in self._posted:
            name, count = self._posted[repeated]
            self._posted[repeated] = (name, count + 1)
            patch = {"count": count + 1, "lastTimestamp": timestamp(when)}
            await self._client.patch(EVENTS, name, patch, namespace=namespace)
            return
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        event: dict[str, Any] = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.get("apiVersion", "v1"),
                "kind": about.get("kind", "Pod"),
                "name": metadata["name"],
                "namespace": metadata.get("namespace"),
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": self._source,
            "firstTimestamp": timestamp(when),
            "lastTimestamp": timestamp(when),
            "count": 1,
        }
        await self._client.create(EVENTS, event, namespace=namespace)
        self._posted[repeated] = (name, 1)
        while len(self._posted) > _REMEMBERED:
            self._posted.popitem(last=False)
