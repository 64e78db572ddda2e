"""Publishing many messages: a window of them outstanding, bounded in number and in bytes, each one repeated until it is
acknowledged. The first failure stops the publisher and is raised at the next call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusClosed, BusError, BusTimeout, BusUnavailable, PayloadTooLarge
from trimtab.fabric.bus.names import Headers, checked_subject, encoded_size
from trimtab.fabric.bus.publisher import Acknowledgement, read_acknowledgement, stamped
from trimtab.fabric.bus.retry import RETRY_BACKOFF, is_worth_repeating

_LOOK_INTERVAL_S = 0.1


@dataclass(slots=True, eq=False)
class _Outstanding:
    subject: str
    payload: bytes
    headers: Headers
    size: int
    expires_at: float
    acknowledged: asyncio.Future[Acknowledgement]
    window: WindowedPublisher
    repeat_at: float = 0.0
    repeats: int = 0
    reply: str = ""

    # An outstanding message is its own slot in the inbox: one object and no closures for each.
    def answered(self, message: Msg) -> None:
        self.window._answered(self, message)

    def lost(self) -> None:
        self.repeat_at = self.window._clock()


class WindowedPublisher:
    """Use as an async context manager: leaving it normally waits until everything is acknowledged."""

    def __init__(self, bus: Bus, *, max_messages: int, max_bytes: int, deadline_s: float | None = None) -> None:
        if max_messages < 1 or max_bytes < 1:
            raise ValueError("max_messages and max_bytes must be positive")
        self._bus = bus
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._deadline_s = bus.request_timeout_s if deadline_s is None else deadline_s
        self._attempt_timeout_s = bus.attempt_timeout_s
        self._outstanding: set[_Outstanding] = set()
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: BusError | None = None
        self._loop = asyncio.get_running_loop()
        self._clock: Callable[[], float] = self._loop.time
        self._repeater: asyncio.Task[None] | None = None

    @property
    def outstanding_messages(self) -> int:
        return len(self._outstanding)

    @property
    def outstanding_bytes(self) -> int:
        return self._bytes

    async def publish(
        self, subject: str, payload: bytes, *, message_id: str, headers: Headers | None = None
    ) -> asyncio.Future[Acknowledgement]:
        """Returns once the message is in the window. Await the result, or leave it to `flush`, which raises for all."""
        checked_subject(subject)
        all_headers = stamped(headers, message_id)
        size = len(payload) + encoded_size(all_headers)
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"message of {size} bytes does not fit the window of {self._max_bytes}",
                size=size,
                limit=self._max_bytes,
            )
        await self._wait_while(lambda: self._is_full(size))
        item = _Outstanding(
            subject=subject,
            payload=payload,
            headers=all_headers,
            size=size,
            expires_at=self._clock() + self._deadline_s,
            acknowledged=self._loop.create_future(),
            window=self,
        )
        self._outstanding.add(item)
        self._bytes += size
        try:
            await self._send(item)
        except (BusTimeout, BusUnavailable):
            item.repeat_at = self._clock()
        except BaseException:
            self._settle(item)
            raise
        if self._repeater is None:
            self._repeater = asyncio.create_task(self._repeat())
            self._repeater.add_done_callback(self._repeater_ended)
        return item.acknowledged

    async def flush(self) -> None:
        """Waits until nothing is outstanding; raises the first failure. Bounded by the deadline of each message."""
        await self._wait_while(lambda: bool(self._outstanding))

    async def close(self) -> None:
        """Stops without waiting; what is outstanding fails with BusClosed."""
        if self._repeater is not None:
            self._repeater.cancel()
            self._repeater = None
        self._fail(BusClosed("the publisher was closed before the acknowledgement"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    def _is_full(self, size: int) -> bool:
        return len(self._outstanding) >= self._max_messages or self._bytes + size > self._max_bytes

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        # No timer: the repeater fails the window when its oldest message passes its deadline, and that wakes us.
        while self._failure is None and condition():
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _repeater_ended(self, repeater: asyncio.Task[None]) -> None:
        """Without the repeater nothing would end a wait, so whatever ends it fails the window."""
        if self._failure is None:
            reason = "was cancelled" if repeater.cancelled() else f"failed: {repeater.exception()!r}"
            self._fail(BusClosed(f"the publisher's repeater {reason}"))

    async def _send(self, item: _Outstanding) -> None:
        now = self._clock()
        item.repeat_at = now + self._attempt_timeout_s * (1 + item.repeats)
        if not self._bus.may_wait_to_write(item.size):
            await self._write(item)
            return
        limit_s = max(0.001, min(self._attempt_timeout_s, item.expires_at - now))
        await self._bus.wait_connected(deadline_s=limit_s)
        try:
            async with asyncio.timeout_at(now + limit_s):
                await self._write(item)
        except TimeoutError:
            raise BusTimeout(f"could not write to {item.subject!r}") from None

    async def _write(self, item: _Outstanding) -> None:
        item.reply = self._bus.register(item)
        await self._bus.send(item.subject, item.payload, reply=item.reply, headers=item.headers)

    def _answered(self, item: _Outstanding, message: Msg) -> None:
        outcome = read_acknowledgement(message, subject=item.subject, size=item.size)
        if isinstance(outcome, Acknowledgement):
            if not item.acknowledged.done():
                item.acknowledged.set_result(outcome)
            self._settle(item)
        elif is_worth_repeating(outcome):
            item.repeat_at = self._clock() + RETRY_BACKOFF.delay_s(item.repeats)
        else:
            self._fail(outcome)

    def _settle(self, item: _Outstanding) -> None:
        if item in self._outstanding:
            self._outstanding.discard(item)
            self._bytes -= item.size
            self._bus.release(item.reply)
            self._wake()

    def _fail(self, error: BusError) -> None:
        self._failure = self._failure or error
        for item in tuple(self._outstanding):
            if not item.acknowledged.done():
                item.acknowledged.set_exception(self._failure)
                # Marks it as seen: the failure is raised by publish and flush, so an unawaited future is no mistake.
                item.acknowledged.exception()
            self._settle(item)
        self._wake()

    async def _repeat(self) -> None:
        while self._failure is None:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            now = self._clock()
            for item in [item for item in self._outstanding if now >= min(item.repeat_at, item.expires_at)]:
                if self._clock() >= item.expires_at:
                    message = f"{item.subject!r} was not acknowledged within {self._deadline_s:.3g} s"
                    self._fail(BusTimeout(message))
                    return
                if item not in self._outstanding:
                    continue
                self._bus.release(item.reply)
                item.repeats += 1
                try:
                    await self._send(item)
                except (BusTimeout, BusUnavailable):
                    item.repeat_at = self._clock() + RETRY_BACKOFF.delay_s(item.repeats)
                except BusError as error:
                    self._fail(error)
                    return
