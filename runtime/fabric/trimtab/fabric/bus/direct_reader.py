"""Follows a bucket without a consumer, for users that may not make any. A user that may make a consumer may have the
server deliver to any subject of the account, which NATS does not check against the user's rights.

A subscription to the bucket's own subjects tells that something was written; what it was is read from the stream, by
sequence. A message may come before the entry is stored, or be lost, so the reader also looks by itself.
"""

from __future__ import annotations

import asyncio
import contextlib

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import StoredMessage, get_following
from trimtab.fabric.bus.errors import BusRefused, BusTimeout, BusUnavailable

_FIRST_LOOK_S = 0.05
"""After a ring, and then twice as long each time …"""
_LAST_LOOK_S = 2.0
"""… up to this."""


class DirectReader:
    """Each message on the subject once and in order. Of streams that keep several messages for a subject it begins with
    what is superseded, which only those want who write down what was."""

    def __init__(self, bus: Bus, *, stream: str, subject: str) -> None:
        self._bus = bus
        self._stream = stream
        self._subject = subject
        self._last_sequence = 0
        self._bell: Subscription | None = None
        self._rung = asyncio.Event()
        self._look_s = _FIRST_LOOK_S
        self.caught_up = False
        """Whether everything that was in the stream at the last read has been handed out."""

    async def read(self, *, batch: int, wait_s: float) -> list[StoredMessage]:
        """The next messages, empty when none came in time or when it has just caught up. Lost connections are ridden
        out while the time lasts; then BusTimeout."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait_s
        while True:
            found = await self._look(batch=batch, deadline_s=max(1.0, end - clock()))
            if found:
                self._last_sequence = found[-1].sequence
                self._look_s = _FIRST_LOOK_S
                return found
            if not self.caught_up:
                self.caught_up = True
                return []
            if clock() >= end:
                return []
            await self._rest(end - clock())

    async def close(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            await self._bus.unsubscribe(bell)

    async def _look(self, *, batch: int, deadline_s: float) -> list[StoredMessage]:
        try:
            if self._bell is None:
                # Before the first look: what is written after it rings.
                self._bell = await self._bus.subscribe(self._subject, cb=self._ring)
            return await get_following(
                self._bus,
                self._stream,
                after_sequence=self._last_sequence,
                subject=self._subject,
                count=batch,
                deadline_s=deadline_s,
            )
        except (BusTimeout, BusUnavailable, BusRefused) as error:
            raise BusTimeout(f"reading {self._stream!r} could not go on: {error}") from error

    async def _rest(self, at_most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._look_s, at_most_s)):
                await self._rung.wait()
        if self._rung.is_set():
            self._rung.clear()
            self._look_s = _FIRST_LOOK_S
            # Many that write at once are read together.
            await asyncio.sleep(min(_FIRST_LOOK_S, at_most_s))
        else:
            self._look_s = min(_LAST_LOOK_S, 2 * self._look_s)

    async def _ring(self, _: Msg) -> None:
        self._rung.set()
