"""How many workers of a pool serve, by their heartbeats. The manifest's replicas are only what somebody wished for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.member import MemberHeartbeat, State

_log = structlog.get_logger(__name__)


class PoolCensus:
    """Counts when asked, unless the last number is still good.

    Members are looked at now and then instead of followed: if each worker heard every other's heartbeat, a large fleet
    would be busy with nothing else.
    """

    def __init__(
        self,
        members: KeyValue,
        *,
        pool: str,
        clock: Callable[[], float],
        good_for_s: float = 5.0,
        deadline_s: float = 2.0,
    ) -> None:
        self._members = members
        self._pool = pool
        self._clock = clock
        self._good_for_s = good_for_s
        self._deadline_s = deadline_s
        self._counted_at: float | None = None
        self._ready = 0

    async def ready_workers(self) -> int:
        """The last known number while the bus is away."""
        now = self._clock()
        if self._counted_at is None or now - self._counted_at >= self._good_for_s:
            try:
                self._ready = await self._count()
                self._counted_at = now
            except BusError as error:
                _log.warning("pool_not_counted", pool=self._pool, error=str(error))
        return self._ready

    async def _count(self) -> int:
        clock = asyncio.get_running_loop().time
        end = clock() + self._deadline_s
        ready = 0
        async with KvWatch(self._members) as watch:
            while True:
                change = await watch.next(deadline_s=end - clock())
                if isinstance(change, SnapshotComplete):
                    return ready
                if isinstance(change, Entry):
                    ready += self._is_ready(change)

    def _is_ready(self, entry: Entry) -> bool:
        try:
            member = decode(entry.value, MemberHeartbeat)
        except WireError as error:
            _log.warning("heartbeat_refused", key=entry.key, reason=str(error))
            return False
        return member.pool == self._pool and member.state is State.READY
