"""Lets a pool's workers swap their weights a few at a time, so that the others go on serving.

Slots are keys in a bucket of the job: the worker that creates a key has the slot, and a key that is not renewed
disappears. Turns keep a pool serving; they are not needed for safety. A worker that waited long enough, or that cannot
reach the bus, swaps without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from zlib import crc32

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusConflict, BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.member import MemberHeartbeat, State

_log = structlog.get_logger(__name__)
_WORKERS_PER_SLOT = 4


class PoolCensus:
    """How many workers of a pool serve, by their heartbeats, which say more than the replicas of the manifest. It
    counts when asked, unless the last number is still good.

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


@dataclass(frozen=True, kw_only=True)
class TurnTimings:
    """How long a swap may be held up: by others that swap, and by a bus that is away."""

    patience_s: float = 30.0
    deadline_s: float = 2.0


TURN_TIMINGS = TurnTimings()


@dataclass(kw_only=True)
class _Slot:
    key: str
    revision: int


class SwapTurns:
    """One worker's turns for one policy."""

    def __init__(
        self,
        slots: KeyValue,
        census: PoolCensus,
        *,
        pool: str,
        policy: str,
        member: str,
        clock: Callable[[], float],
        waits: FullJitter,
        timings: TurnTimings = TURN_TIMINGS,
    ) -> None:
        self._slots = slots
        self._census = census
        self._pool = pool
        self._policy = policy
        self._member = member
        self._clock = clock
        self._waits = waits
        self._timings = timings

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Inside, at most a quarter of the pool swaps, or one worker where that is less than one."""
        slot = await self._take()
        if slot is None:
            yield
            return
        renewal = asyncio.create_task(self._renew(slot))
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            await self._give_back(slot)

    async def _take(self) -> _Slot | None:
        """None where no slot is needed or none was to be had."""
        workers = await self._census.ready_workers()
        if workers < 2:
            return None
        slots = max(1, workers // _WORKERS_PER_SLOT)
        began = self._clock()
        first, attempt = crc32(self._member.encode()), 0
        while self._clock() - began < self._timings.patience_s:
            key = JobTopology.swap_slot_key(self._pool, self._policy, slot=(first + attempt) % slots)
            try:
                revision = await self._slots.create(key, self._member.encode(), deadline_s=self._timings.deadline_s)
            except BusConflict:
                attempt += 1
                await asyncio.sleep(self._waits.delay_s(attempt))
            except BusError as error:
                _log.warning("swap_without_turn", policy=self._policy, reason=str(error))
                return None
            else:
                return _Slot(key=key, revision=revision)
        reason = f"no slot of {slots} in {self._timings.patience_s:.0f} s"
        _log.warning("swap_without_turn", policy=self._policy, reason=reason)
        return None

    async def _renew(self, slot: _Slot) -> None:
        """A swap may take longer than the slot lives by itself."""
        while True:
            await asyncio.sleep(self._slots.spec.ttl_s / 3)
            try:
                slot.revision = await self._slots.update(
                    slot.key, self._member.encode(), revision=slot.revision, deadline_s=self._timings.deadline_s
                )
            except BusConflict:
                return  # it ran out while the bus was away, and another has it
            except BusError as error:
                _log.warning("swap_turn_not_renewed", policy=self._policy, error=str(error))

    async def _give_back(self, slot: _Slot) -> None:
        try:
            await self._slots.delete(slot.key, revision=slot.revision, deadline_s=self._timings.deadline_s)
        except BusConflict:
            return
        except BusError as error:
            _log.warning("swap_turn_runs_out", policy=self._policy, error=str(error))
