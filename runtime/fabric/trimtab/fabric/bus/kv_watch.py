"""Following a bucket: every key's present value, then every change, through lost connections and server restarts.

A watch reads through a throw-away consumer of its own. Whenever that may have missed something (a lost connection, a
gap in its numbering, the consumer gone) it makes a new one that starts behind the last change it has handed out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused, BusTimeout, BusUnavailable
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import Entry, KeyValue, is_removal
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.retry import RETRY_BACKOFF

_BATCH = 256
_POLL_S = 5.0
_GONE_AFTER_S = 60.0


@dataclass(frozen=True)
class Removed:
    """The key was deleted, or its time to live ran out."""

    key: str
    revision: int


@dataclass(frozen=True)
class SnapshotComplete:
    """Everything that was in the bucket when the watch began has been handed out."""


Change = Entry | Removed | SnapshotComplete


class KvWatch:
    """`async for change in watch` runs until it is closed; `next` does one step with a deadline."""

    def __init__(self, bucket: KeyValue, *, keys: str = ">", headers_only: bool = False) -> None:
        self._bucket = bucket
        self._bus = bucket.bus
        self._filter = f"$KV.{bucket.spec.name}.{keys}"
        self._prefix = len(f"$KV.{bucket.spec.name}.")
        self._headers_only = headers_only
        self._ready: deque[Change] = deque()
        self._puller: Puller | None = None
        self._consumer = ""
        self._epoch = -1
        self._consumer_sequence = 0
        self._last_revision: int | None = None
        self._in_snapshot = True

    async def next(self, *, deadline_s: float) -> Change:
        """The next change, or BusTimeout. Lost connections are ridden out as far as the deadline allows."""
        clock = asyncio.get_running_loop().time
        end = clock() + deadline_s
        failures = 0
        while not self._ready:
            left = end - clock()
            if left <= 0:
                raise BusTimeout(f"no change in bucket {self._bucket.spec.name!r} within {deadline_s:.3g} s")
            try:
                await self._read(wait_s=min(left, _POLL_S))
                failures = 0
            except (BusTimeout, BusUnavailable, BusNotFound, BusRefused) as error:
                await self._drop_consumer()
                delay = RETRY_BACKOFF.delay_s(failures)
                failures += 1
                if clock() + delay >= end:
                    raise BusTimeout(f"watch of {self._bucket.spec.name!r} could not go on: {error}") from error
                await asyncio.sleep(delay)
        return self._ready.popleft()

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            try:
                change = await self.next(deadline_s=_GONE_AFTER_S)
            except BusTimeout:
                continue
            yield change

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        consumer = self._consumer
        await self._drop_consumer()
        if consumer:
            try:
                operation = f"CONSUMER.DELETE.{self._bucket.spec.stream}.{consumer}"
                await api_call(self._bus, operation, deadline_s=1.0)
            except BusError:
                return  # it removes itself after a time of inactivity

    async def _read(self, *, wait_s: float) -> None:
        if self._puller is None or self._epoch != self._bus.epoch:
            await self._make_consumer(deadline_s=wait_s)
            if self._ready:
                return
        assert self._puller is not None
        deliveries = await self._puller.fetch(batch=_BATCH, wait_s=wait_s)
        for delivery in deliveries:
            self._consumer_sequence += 1
            if delivery.consumer_sequence != self._consumer_sequence:
                raise BusUnavailable("the watch's consumer skipped a message")
            self._hand_out(delivery)

    def _hand_out(self, delivery: Delivery) -> None:
        key = delivery.subject[self._prefix :]
        self._last_revision = delivery.sequence
        if is_removal(delivery.headers):
            self._ready.append(Removed(key=key, revision=delivery.sequence))
        else:
            self._ready.append(Entry(key=key, value=delivery.payload, revision=delivery.sequence))
        if self._in_snapshot and delivery.pending == 0:
            self._end_snapshot()

    def _end_snapshot(self) -> None:
        self._in_snapshot = False
        self._ready.append(SnapshotComplete())

    async def _make_consumer(self, *, deadline_s: float) -> None:
        await self._drop_consumer()
        epoch = self._bus.epoch
        name = f"watch-{uuid.uuid4().hex}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "filter_subject": self._filter,
            "headers_only": self._headers_only,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": round(_GONE_AFTER_S * 1e9),
        }
        if self._last_revision is None:
            config["deliver_policy"] = "last_per_subject"
        else:
            config["deliver_policy"] = "by_start_sequence"
            config["opt_start_seq"] = self._last_revision + 1
        stream = self._bucket.spec.stream
        operation = f"CONSUMER.CREATE.{stream}.{name}.{self._filter}"
        body = {"stream_name": stream, "config": config}
        info = await api_call(self._bus, operation, body, deadline_s=deadline_s)
        self._puller = await Puller.open(self._bus, stream=stream, consumer=name)
        self._consumer = name
        self._consumer_sequence = 0
        self._epoch = epoch
        if self._in_snapshot and info.get("num_pending", 0) == 0:
            self._end_snapshot()

    async def _drop_consumer(self) -> None:
        puller, self._puller = self._puller, None
        self._consumer = ""
        if puller is not None:
            await puller.close()


async def keys(bucket: KeyValue, *, deadline_s: float) -> list[str]:
    """The keys that exist now, sorted; their values do not travel."""
    present: set[str] = set()
    clock = asyncio.get_running_loop().time
    end = clock() + deadline_s
    async with KvWatch(bucket, headers_only=True) as watch:
        while True:
            change = await watch.next(deadline_s=end - clock())
            match change:
                case Entry(key=key):
                    present.add(key)
                case Removed(key=key):
                    present.discard(key)
                case SnapshotComplete():
                    return sorted(present)
