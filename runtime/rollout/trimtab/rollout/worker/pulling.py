"""How a pod takes what is in a queue: as much as there is room for, side by side, until it is told to stop. Then it
finishes what it has within the grace period and hands back the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Protocol

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnavailable
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import ConsumerSpec
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, WorkerTimings

_log = structlog.get_logger(__name__)
_DECLARE_DEADLINE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Room:
    free: int
    """Deliveries that may be taken now."""
    wait_s: float
    """How long until it is worth another look, where there are none and none has ended."""


class Work(Protocol):
    """What is done with deliveries."""

    draining: asyncio.Event

    def room(self) -> Room: ...

    def begin(self, delivery: Delivery) -> Coroutine[None, None, None]:
        """Takes its room at once, and settles the delivery when it is awaited, whatever happens."""
        ...

    async def hand_back(self, delivery: Delivery) -> None: ...


class Pulling:
    """Of one consumer. `queue` is what logs call it; `freed` is to be set whenever there is more room."""

    def __init__(
        self,
        bus: Bus,
        consumer: ConsumerSpec,
        work: Work,
        *,
        queue: str,
        grace_s: float,
        freed: asyncio.Event,
        timings: WorkerTimings = WORKER_TIMINGS,
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._work = work
        self._queue = queue
        self._grace_s = grace_s
        self._freed = freed
        self._timings = timings
        self._running: set[asyncio.Task[None]] = set()
        self._failed_pulls = 0

    @property
    def in_flight(self) -> int:
        """Deliveries that are begun and not settled."""
        return len(self._running)

    async def run(self, stopping: asyncio.Event) -> None:
        await declare_consumer(self._bus, self._consumer, deadline_s=_DECLARE_DEADLINE_S)
        try:
            # Closed before anything is handed back: a pull that is still open would be given it again.
            async with await Puller.open(
                self._bus, stream=self._consumer.stream, consumer=self._consumer.name
            ) as puller:
                while not stopping.is_set():
                    await self._take(puller, stopping)
            await self._drain()
        finally:
            await self._hand_back()

    async def _take(self, puller: Puller, stopping: asyncio.Event) -> None:
        room = self._work.room()
        if room.free <= 0:
            await self._wait_for_room(room.wait_s)
            return
        try:
            pulled = await puller.fetch(batch=room.free, wait_s=self._timings.pull_wait_s)
        except (BusTimeout, BusUnavailable) as error:
            _log.warning("pull_repeated", queue=self._queue, error=str(error))
            await asyncio.sleep(self._timings.pull_backoff.delay_s(self._failed_pulls))
            self._failed_pulls += 1
            # A server that lost its power may have lost the consumer too, and nobody else makes it on one machine.
            with contextlib.suppress(BusError):
                await declare_consumer(self._bus, self._consumer, deadline_s=self._timings.pull_wait_s)
            return
        self._failed_pulls = 0
        if stopping.is_set():
            await asyncio.gather(*(self._work.hand_back(delivery) for delivery in pulled))
            return
        for delivery in pulled:
            task = asyncio.create_task(self._work.begin(delivery))
            self._running.add(task)
            task.add_done_callback(self._finished)

    async def _wait_for_room(self, wait_s: float) -> None:
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._freed.wait()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_not_settled", queue=self._queue, error=repr(task.exception()))

    async def _drain(self) -> None:
        self._work.draining.set()
        _log.info("draining", queue=self._queue, in_flight=len(self._running), grace_s=self._grace_s)
        if self._running:
            await asyncio.wait(self._running, timeout=max(0.0, self._grace_s - self._timings.hand_back_s))

    async def _hand_back(self) -> None:
        late = list(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        _log.info("drained", queue=self._queue, handed_back=len(late))
