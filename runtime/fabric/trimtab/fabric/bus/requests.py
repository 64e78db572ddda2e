"""Request and reply: typed errors on both sides, bounded concurrency at the responder, an answer for every request.

A handler that fails answers with an error in the reply's headers; the requester gets it back as RemoteError instead of
waiting for its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, PayloadTooLarge, RemoteError
from trimtab.fabric.bus.names import Headers, checked_headers, checked_subject

log = structlog.get_logger(__name__)

KIND_HEADER = "Trimtab-Error-Kind"
MESSAGE_HEADER = "Trimtab-Error-Message"
RETRYABLE_HEADER = "Trimtab-Error-Retryable"
MAX_ERROR_CHARS = 500


@dataclass(frozen=True)
class Request:
    subject: str
    payload: bytes
    headers: Headers


@dataclass(frozen=True)
class Reply:
    payload: bytes
    headers: Headers = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Reply]]


def error_headers(error: RemoteError) -> Headers:
    text = " ".join(error.message.split())[:MAX_ERROR_CHARS].strip()
    return {KIND_HEADER: error.kind, MESSAGE_HEADER: text, RETRYABLE_HEADER: "true" if error.retryable else "false"}


def error_in(headers: Headers) -> RemoteError | None:
    kind = headers.get(KIND_HEADER)
    if kind is None:
        return None
    return RemoteError(headers.get(MESSAGE_HEADER, ""), kind=kind, retryable=headers.get(RETRYABLE_HEADER) == "true")


async def request(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    headers: Headers | None = None,
    deadline_s: float | None = None,
    repeat_every_s: float | None = None,
) -> Reply:
    """One question, sent once; with `repeat_every_s` again and again until something answers, for those that may be
    heard twice. NoResponders, BusTimeout, BusUnavailable, or the responder's own failure as RemoteError.
    """
    checked_subject(subject)
    message = await bus.ask(
        subject,
        payload,
        headers=checked_headers(headers) if headers else None,
        deadline_s=bus.request_timeout_s if deadline_s is None else deadline_s,
        repeat_every_s=repeat_every_s,
    )
    error = error_in(message.headers or {})
    if error is not None:
        raise error
    return Reply(payload=message.data, headers=message.headers or {})


class Responder:
    """Answers requests on a subject, at most `concurrency` at a time. Those that would wait behind more than `backlog`
    others are told to come back later.
    """

    def __init__(
        self, bus: Bus, subject: str, handler: Handler, *, concurrency: int, backlog: int, handler_deadline_s: float
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._handler = handler
        self._limit = concurrency + backlog
        self._turn = asyncio.Semaphore(concurrency)
        self._handler_deadline_s = handler_deadline_s
        self._running: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None

    async def _start(self, queue_group: str) -> None:
        self._subscription = await self._bus.subscribe(self._subject, queue=queue_group, cb=self._accept)

    async def close(self, *, deadline_s: float = 5.0) -> None:
        """Takes no more requests and lets the running ones answer; past the deadline they are cancelled."""
        if self._subscription is not None:
            await self._bus.unsubscribe(self._subscription)
            self._subscription = None
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _accept(self, message: Msg) -> None:
        if not message.reply:
            log.warning("request_without_reply_subject", subject=message.subject)
            return
        if len(self._running) >= self._limit:
            overloaded = RemoteError("too many requests are waiting", kind="overloaded", retryable=True)
            await self._answer(message, Reply(payload=b"", headers=error_headers(overloaded)))
            return
        task = asyncio.create_task(self._handle(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, message: Msg) -> None:
        async with self._turn:
            request = Request(subject=message.subject, payload=message.data, headers=message.headers or {})
            try:
                async with asyncio.timeout(self._handler_deadline_s) as limit:
                    reply = await self._handler(request)
            except RemoteError as error:
                reply = Reply(payload=b"", headers=error_headers(error))
            except Exception as error:  # whatever a handler raises has to become an answer
                late = isinstance(error, TimeoutError) and limit.expired()
                log.exception("request_failed", subject=message.subject, late=late)
                # Only the type goes out: the text of an unforeseen exception may hold what the requester must not see.
                failure = RemoteError(
                    f"handler exceeded {self._handler_deadline_s:.3g} s" if late else type(error).__name__,
                    kind="deadline" if late else "internal",
                    retryable=late,
                )
                reply = Reply(payload=b"", headers=error_headers(failure))
            await self._answer(message, reply)

    async def _answer(self, message: Msg, reply: Reply) -> None:
        try:
            try:
                await self._post(message.reply, reply)
            except PayloadTooLarge as error:
                too_large = RemoteError(str(error), kind="reply-too-large")
                await self._post(message.reply, Reply(payload=b"", headers=error_headers(too_large)))
        except BusError as error:
            log.warning("reply_not_sent", subject=message.subject, error=str(error))

    async def _post(self, subject: str, reply: Reply) -> None:
        headers = checked_headers(reply.headers) if reply.headers else None
        await self._bus.post(subject, reply.payload, headers=headers, deadline_s=self._bus.request_timeout_s)


async def serve(
    bus: Bus,
    subject: str,
    handler: Handler,
    *,
    queue_group: str,
    concurrency: int,
    backlog: int = 1024,
    handler_deadline_s: float,
) -> Responder:
    """Starts answering; members of one queue group share the requests. Close the Responder to stop."""
    responder = Responder(
        bus, subject, handler, concurrency=concurrency, backlog=backlog, handler_deadline_s=handler_deadline_s
    )
    await responder._start(queue_group)
    return responder
