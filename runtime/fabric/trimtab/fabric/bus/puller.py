"""Pulling from a durable consumer, bounded in messages and in bytes.

The byte bound is not a nicety: the server cuts off a client to which it has more in flight than max_pending, and one
that asks for the same batch again after reconnecting is cut off again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from types import TracebackType
from typing import Self

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused, BusTimeout, BusUnavailable, PayloadTooLarge
from trimtab.fabric.bus.inbox import description_of, status_of
from trimtab.fabric.bus.retry import RETRY_BACKOFF

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
# How long after the server should have ended a request we still wait for it to say so.
_GRACE_S = 3.0
_LOST = "lost"
_PASSING = ("batch completed", "leadership change", "server shutdown", "interest lost")


class Puller:
    """One reader of one consumer. `fetch` calls take turns; open several pullers to read in parallel."""

    def __init__(self, bus: Bus, *, stream: str, consumer: str) -> None:
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = bus.new_inbox()
        self._arrived: deque[Delivery] = deque()
        self._request = 0
        self._ended: tuple[str, str] | None = None
        self._wanted = 0
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._forget = bus.on_lost(self._lost)

    @classmethod
    async def open(cls, bus: Bus, *, stream: str, consumer: str) -> Self:
        puller = cls(bus, stream=stream, consumer=consumer)
        puller._subscription = await bus.subscribe_prompt(f"{puller._inbox}.*", puller._deliver)
        return puller

    async def fetch(self, *, batch: int, wait_s: float, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Delivery]:
        """What is there now, at most `batch` messages and `max_bytes` (headers and subjects count). When there is
        nothing, waits up to `wait_s` for the first message and returns with it; empty when none came.
        """
        if batch < 1 or max_bytes < 1:
            raise ValueError("batch and max_bytes must be positive")
        clock = asyncio.get_running_loop().time
        end = clock() + wait_s
        attempt = 0
        error: BusError | None = None
        async with self._turn:
            while True:
                if self._arrived:
                    return self._take(batch)
                left = end - clock()
                if left <= 0 and error is not None:
                    raise error
                error = await self._ask(batch=batch, max_bytes=max_bytes, wait_s=max(left, 0.001))
                if self._arrived:
                    return self._take(batch)
                if error is None:
                    return []
                delay = RETRY_BACKOFF.delay_s(attempt)
                attempt += 1
                if not isinstance(error, BusUnavailable) or clock() + delay >= end:
                    raise error
                await asyncio.sleep(delay)

    async def close(self) -> None:
        self._forget()
        if self._subscription is not None:
            await self._bus.unsubscribe(self._subscription)
            self._subscription = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _take(self, batch: int) -> list[Delivery]:
        return [self._arrived.popleft() for _ in range(min(batch, len(self._arrived)))]

    async def _ask(self, *, batch: int, max_bytes: int, wait_s: float) -> BusError | None:
        """One pull request, to its end. None when it ended as pull requests do."""
        # With no_wait and expires together the server sends what it has and ends, or waits for the first message.
        body = {"batch": batch, "max_bytes": max_bytes, "no_wait": True, "expires": max(1, int(wait_s * 1e9))}
        try:
            async with asyncio.timeout(wait_s + _GRACE_S):
                await self._bus.wait_connected(deadline_s=wait_s)
                self._request += 1
                self._wanted = batch
                self._ended = None
                reply = f"{self._inbox}.{self._request}"
                await self._bus.send(self._subject, json.dumps(body).encode(), reply=reply)
                while self._ended is None and len(self._arrived) < batch:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            return BusTimeout(f"consumer {self._consumer!r} of {self._stream!r} did not answer within {wait_s:.3g} s")
        except BusUnavailable as error:
            return error
        return self._read_end(max_bytes=max_bytes)

    def _read_end(self, *, max_bytes: int) -> BusError | None:
        status, description = self._ended or ("", "")
        if status in ("", "404", "408"):
            return None
        who = f"consumer {self._consumer!r} of {self._stream!r}"
        if status == _LOST:
            return BusUnavailable(f"the connection was lost while pulling from {who}")
        if status == "503":
            return BusUnavailable(f"{who} does not exist or has no leader yet")
        lowered = description.lower()
        if "maxbytes" in lowered:
            message = f"the next message of {who} is larger than max_bytes={max_bytes}; raise the bound"
            return PayloadTooLarge(message, size=max_bytes + 1, limit=max_bytes)
        if "deleted" in lowered:
            return BusNotFound(f"{who} was deleted")
        if any(reason in lowered for reason in _PASSING):
            return BusUnavailable(f"{who}: {description}")
        return BusRefused(f"{who} refused the pull: {description}", code=int(status), err_code=0)

    def _deliver(self, message: Msg) -> None:
        status = status_of(message)
        if status is None or message.reply:
            self._arrived.append(Delivery.from_message(self._bus, message))
            if len(self._arrived) >= self._wanted:
                self._wake.set()
        elif message.subject == f"{self._inbox}.{self._request}":
            # Ends of earlier requests, given up by us, are not this one's.
            self._ended = (status, description_of(message))
            self._wake.set()

    def _lost(self) -> None:
        self._ended = (_LOST, "")
        self._wake.set()
