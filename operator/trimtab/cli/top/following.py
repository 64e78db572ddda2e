"""Follows what pods, dataflow and trainers of a job say of themselves, as the live view does, but from anywhere that
reaches its NATS server, and without writing anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from trimtab.cli.top.picture import Picture, picture_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.bus.topology import BucketSpec, JobTopology
from trimtab.fabric.members import MemberTable
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.member import MemberHeartbeat
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.weights import WeightPointer

_log = structlog.get_logger(__name__)
_DEADLINE_S = 15.0
_QUEUE_EVERY_S = 1.0
_AGAIN_S = 2.0


class JobNow:
    """The newest of everything. `clock` is that of the pods, Unix time."""

    def __init__(self, bus: Bus, topology: JobTopology, *, clock: Callable[[], float]) -> None:
        self._bus = bus
        self._topology = topology
        self._clock = clock
        self._members = MemberTable(ttl_s=topology.member_ttl_s, clock=time.monotonic)
        self._progress: dict[str, StepProgress] = {}
        self._reports: dict[str, BalanceReport] = {}
        self._weights: dict[str, WeightPointer] = {}
        self._queued: int | None = None

    @property
    def members(self) -> list[MemberHeartbeat]:
        return self._members.present

    def picture(self) -> Picture:
        return picture_of(
            self._topology.job,
            members=self._members.present,
            progress=self._progress,
            reports=self._reports,
            weights=self._weights,
            queued=self._queued,
            now=self._clock(),
        )

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """From the moment at which everything that is there now is known."""
        buckets = {
            self._topology.members: self._members.note,
            self._topology.balance: self._note_balance,
            self._topology.weights: self._note_weights,
        }
        known = [asyncio.Event() for _ in buckets]
        loops = [
            asyncio.create_task(self._follow(bucket, note, first))
            for (bucket, note), first in zip(buckets.items(), known, strict=True)
        ]
        await self._look_at_queue()
        loops.append(asyncio.create_task(self._follow_queue()))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await asyncio.gather(*(one.wait() for one in known))
        except TimeoutError:
            _log.warning("not_everything_known", job=self._topology.job)
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def _follow(self, bucket: BucketSpec, note: Callable[..., None], known: asyncio.Event) -> None:
        while True:
            try:
                async with KvWatch(KeyValue(self._bus, bucket)) as watch:
                    async for change in watch:
                        if isinstance(change, SnapshotComplete):
                            known.set()
                        else:
                            note(change)
            except BusError as error:
                _log.warning("not_followed", bucket=bucket.name, error=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _follow_queue(self) -> None:
        while True:
            await asyncio.sleep(_QUEUE_EVERY_S)
            await self._look_at_queue()

    async def _look_at_queue(self) -> None:
        """Tasks that are given out are on it until they are settled."""
        try:
            info = await api_call(self._bus, f"STREAM.INFO.{self._topology.tasks.name}", deadline_s=_DEADLINE_S)
        except BusNotFound:
            self._queued = None
        except BusError as error:
            _log.warning("queue_not_known", error=str(error))
        else:
            self._queued = int(info["state"]["messages"])

    def _note_balance(self, change: object) -> None:
        if not isinstance(change, Entry):
            return
        try:
            if change.key.endswith(".progress"):
                progress = decode(change.value, StepProgress)
                self._progress[progress.policy] = progress
            elif change.key.endswith(".report"):
                report = decode(change.value, BalanceReport)
                self._reports[report.policy] = report
        except WireError as error:
            _log.warning("balance_unreadable", key=change.key, reason=str(error))

    def _note_weights(self, change: object) -> None:
        if not isinstance(change, Entry):
            return
        try:
            pointer = decode(change.value, WeightPointer)
        except WireError as error:
            _log.warning("weights_unreadable", key=change.key, reason=str(error))
        else:
            self._weights[pointer.policy] = pointer
