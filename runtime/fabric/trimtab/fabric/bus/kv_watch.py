"""Following a bucket: every key's present value, then every change, through lost connections and server restarts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.direct_get import StoredMessage
from trimtab.fabric.bus.direct_reader import DirectReader
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.keyvalue import Entry, KeyValue, is_removal
from trimtab.fabric.bus.reader import StreamReader

_BATCH = 256
_POLL_S = 60.0


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
        self._prefix = len(f"$KV.{bucket.spec.name}.")
        stream, subject = bucket.spec.stream, f"$KV.{bucket.spec.name}.{keys}"
        self._reader: StreamReader | DirectReader
        if bucket.bus.makes_streams:
            self._reader = StreamReader(
                bucket.bus, stream=stream, subject=subject, newest_per_subject=True, headers_only=headers_only
            )
        elif bucket.spec.history > 1:
            raise ValueError(f"bucket {bucket.spec.name!r} has a history, which cannot be followed without a consumer")
        else:
            self._reader = DirectReader(bucket.bus, stream=stream, subject=subject)
        self._ready: deque[Change] = deque()
        self._in_snapshot = True

    async def next(self, *, deadline_s: float) -> Change:
        """The next change, or BusTimeout. Lost connections are ridden out as far as the deadline allows."""
        clock = asyncio.get_running_loop().time
        end = clock() + deadline_s
        while not self._ready:
            left = end - clock()
            if left <= 0:
                raise BusTimeout(f"no change in bucket {self._bucket.spec.name!r} within {deadline_s:.3g} s")
            for delivery in await self._reader.read(batch=_BATCH, wait_s=left):
                self._ready.append(self._change(delivery))
            if self._in_snapshot and self._reader.caught_up:
                self._in_snapshot = False
                self._ready.append(SnapshotComplete())
        return self._ready.popleft()

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            try:
                change = await self.next(deadline_s=_POLL_S)
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
        await self._reader.close()

    def _change(self, delivery: Delivery | StoredMessage) -> Change:
        key = delivery.subject[self._prefix :]
        if is_removal(delivery.headers):
            return Removed(key=key, revision=delivery.sequence)
        return Entry(key=key, value=delivery.payload, revision=delivery.sequence)


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
