"""Events for `kubectl describe`: posted in the background, repeats counted, each object held to a rate, and nothing
ever waits for them or depends on them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError, NotFound
from trimtab.kube.resources import EVENTS, Object
from trimtab.kube.timestamps import timestamp

_log = structlog.get_logger(__name__)
_QUEUE = 1000
_REMEMBERED = 5000
_MESSAGE_LIMIT = 1000
_BURST = 25
_REFILL_PER_S = 1 / 6

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, kw_only=True)
class _Event:
    about: Object
    type: EventType
    reason: str
    message: str
    at: float


@dataclass
class _Bucket:
    """Tokens of one object: a burst, then one every few seconds."""

    tokens: float
    filled_at: float

    def take(self, now: float) -> bool:
        self.tokens = min(_BURST, self.tokens + (now - self.filled_at) * _REFILL_PER_S)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventRecorder:
    """`component` posts them, on `host` if that is what it stands for, as a node does."""

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str,
        instance: str,
        host: str | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._poster = {
            "source": {"component": component} | ({} if host is None else {"host": host}),
            "reportingComponent": component,
            "reportingInstance": instance,
        }
        self._clock = clock
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(_QUEUE)
        self._posted: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def record(self, about: Object, kind: EventType, reason: str, message: str) -> None:
        """At once. One that is too much for its object or for the queue is dropped."""
        now = self._clock()
        uid = str(about["metadata"]["uid"])
        bucket = self._buckets.setdefault(uid, _Bucket(tokens=_BURST, filled_at=now))
        self._buckets.move_to_end(uid)
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        if not bucket.take(now):
            return
        event = _Event(about=about, type=kind, reason=reason, message=message[:_MESSAGE_LIMIT], at=now)
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            _log.warning("event_dropped", reason=reason)

    async def run(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._post(event)
            except (KubeError, ValueError) as error:
                # ValueError: no path of the API has such a name.
                _log.debug("event_not_posted", reason=event.reason, error=str(error))

    async def _post(self, event: _Event) -> None:
        metadata = event.about["metadata"]
        namespace = metadata.get("namespace") or "default"
        repeated = (str(metadata["uid"]), event.reason, event.message)
        known = self._posted.get(repeated)
        if known is not None:
            name, count = known
            self._posted[repeated] = (name, count + 1)
            try:
                patch = {"count": count + 1, "lastTimestamp": timestamp(event.at)}
                await self._client.patch(EVENTS, name, patch, namespace=namespace)
            except NotFound:
                del self._posted[repeated]  # the server forgets events after an hour
            else:
                return
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        await self._client.create(EVENTS, _body(event, name) | self._poster, namespace=namespace)
        self._posted[repeated] = (name, 1)
        while len(self._posted) > _REMEMBERED:
            self._posted.popitem(last=False)


def _body(event: _Event, name: str) -> Object:
    metadata = event.about["metadata"]
    return {
        "metadata": {"name": name, "namespace": metadata.get("namespace") or "default"},
        "involvedObject": {
            "apiVersion": event.about["apiVersion"],
            "kind": event.about["kind"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace"),
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": timestamp(event.at),
        "lastTimestamp": timestamp(event.at),
        "count": 1,
    }
