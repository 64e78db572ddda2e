"""Deletes rows in object storage whose messages are no longer in the stream, or never came to be there.

A worker publishes the claim of a row right after the row itself is stored, or never. So an object that is older than
the oldest message, by more than that can take, belongs to a message that is gone: its row was trained or too stale, or
the worker was killed before it published. What waits, may be replayed or belongs to a step that is not durable is in
the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.wire.claim import claims_of

_log = structlog.get_logger(__name__)
_EVERY_S = 60.0
_DEADLINE_S = 30.0
MARGIN_S = 600.0
"""More than storing a row and publishing its claim take, and more than the clocks of store and stream are apart."""


class ClaimCollector:
    """Of one policy's rows, run by its rank 0: of the roles that reach the store, the trainer's may delete."""

    def __init__(
        self,
        store: ObjectStore,
        bus: Bus,
        *,
        stream: str,
        policy: str,
        clock: Callable[[], float],
        margin_s: float = MARGIN_S,
    ) -> None:
        self._store = store
        self._bus = bus
        self._stream = stream
        self._policy = policy
        self._clock = clock
        self._margin_s = margin_s

    async def run(self) -> None:
        """Until cancelled. What cannot be deleted now is the next round's."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.collect()
            except (BusError, ObjectStoreError) as error:
                _log.warning("claims_not_collected", policy=self._policy, error=str(error))

    async def collect(self) -> int:
        """One round; says how many objects went."""
        oldest = await self._oldest_message_at()
        found = [info async for info in self._store.scan(claims_of(self._policy), deadline_s=_DEADLINE_S)]
        gone = [info.key for info in found if is_unclaimed(info.modified_at, oldest_at=oldest, margin_s=self._margin_s)]
        for key in gone:
            await self._store.delete(key, deadline_s=_DEADLINE_S)
        if gone:
            _log.info("claims_collected", policy=self._policy, deleted=len(gone), left=len(found) - len(gone))
        return len(gone)

    async def _oldest_message_at(self) -> float:
        """In an empty stream, that of the next one."""
        info = await api_call(self._bus, f"STREAM.INFO.{self._stream}", deadline_s=_DEADLINE_S)
        state = info["state"]
        if not state["messages"]:
            return self._clock()
        return datetime.fromisoformat(state["first_ts"]).timestamp()


def is_unclaimed(stored_at: float | None, *, oldest_at: float, margin_s: float) -> bool:
    """Whether no message of the stream can claim what was stored then."""
    return stored_at is not None and stored_at + margin_s < oldest_at
