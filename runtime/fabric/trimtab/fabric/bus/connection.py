"""One connection to the job's NATS: dialled once within a bounded time, then kept for ever, its state observable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import structlog
from nats import errors as nats_errors
from nats.aio.client import Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.client import EnduringClient, stop_dial
from trimtab.fabric.bus.credentials import (
    Credentials,
    CredentialsFile,
    Redactor,
    tls_of,
    without_userinfo,
)
from trimtab.fabric.bus.errors import (
    BusClosed,
    BusTimeout,
    BusUnauthenticated,
    BusUnavailable,
    InvalidName,
    NoResponders,
    PayloadTooLarge,
)
from trimtab.fabric.bus.inbox import CallbackSlot, ReplyInbox, Slot, status_of
from trimtab.fabric.bus.names import Headers, encoded_size
from trimtab.fabric.bus.retry import ATTEMPT_TIMEOUT_S
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.tls import TlsUnusable

log = structlog.get_logger(__name__)

RECONNECT_BACKOFF = FullJitter(base_s=0.1, cap_s=5.0)
# A server that vanished without closing is noticed after three of these.
PING_INTERVAL_S = 4
CLOSE_DEADLINE_S = 5.0
# What may be written ahead of the socket before publishers wait for it. More makes bursts, between which the server
# idles.
OUTBOUND_BUFFER_BYTES = 2 * 1024 * 1024
_REFUSALS = ("authorization violation", "authentication expired", "certificate_verify_failed")


class BusState(StrEnum):
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


class Bus:
    """A live connection. Build it with `Bus.connect`; the sibling modules put JetStream on top of it."""

    def __init__(
        self,
        settings: NatsSettings,
        *,
        name: str,
        credentials: Credentials | None,
        backoff: FullJitter,
        choose: Callable[[list[Server]], Server],
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._name = name
        self._servers = without_userinfo(settings.servers)
        self._redactor = Redactor(settings)
        self._backoff = backoff
        self._choose = choose
        self._attempt_timeout_s = attempt_timeout_s
        self._tls = tls_of(settings)
        self._client = EnduringClient(tls=self._tls, inbox_prefix=settings.inbox_prefix)
        self._inbox = ReplyInbox(self._client)
        self._connected = asyncio.Event()
        self._closed = False
        self._attempt = 0
        self._epoch = 0
        self._last_error = "no server answered"
        self._refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lost_listeners: set[Callable[[], None]] = set()
        self._log = log.bind(bus=name, servers=self._servers)

    @classmethod
    async def connect(
        cls,
        settings: NatsSettings,
        *,
        name: str,
        credentials: Credentials | None = None,
        backoff: FullJitter = RECONNECT_BACKOFF,
        choose: Callable[[list[Server]], Server] = random.choice,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> Self:
        """Dials each server within settings.connect_timeout_s or raises BusUnavailable or BusUnauthenticated.
        Credentials take the place of the settings' file and are asked for at every dial. What gets no answer within
        `attempt_timeout_s` is asked again."""
        if credentials is None and settings.credentials_file is not None:
            credentials = CredentialsFile(settings.credentials_file)
        bus = cls(
            settings,
            name=name,
            credentials=credentials,
            backoff=backoff,
            choose=choose,
            attempt_timeout_s=attempt_timeout_s,
        )
        try:
            await bus._dial()
        except BaseException:
            await bus._abandon()
            raise
        return bus

    async def _dial(self) -> None:
        settings = self._settings
        credentials = self._credentials
        password = settings.password.get_secret_value() if settings.password is not None else None
        self._check_tls()
        dialling = asyncio.ensure_future(
            self._client.connect(
                servers=list(settings.servers),
                name=self._name,
                user=settings.user,
                password=password,
                user_jwt_cb=credentials.user_jwt if credentials else None,
                signature_cb=credentials.sign if credentials else None,
                connect_timeout=settings.connect_timeout_s,  # type: ignore[arg-type]  # upstream says int, uses seconds
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=PING_INTERVAL_S,
                pending_size=OUTBOUND_BUFFER_BYTES,
                inbox_prefix=settings.inbox_prefix,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                reconnect_to_server_handler=self._next_server,
            )
        )
        try:
            outcomes: set[asyncio.Future[Any]] = {dialling, self._refused}
            # A server that has vanished refuses nothing: the others are dialled after it.
            limit_s = settings.connect_timeout_s * len(settings.servers)
            await asyncio.wait(outcomes, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                raise BusUnauthenticated(f"NATS at {self._servers} refused the connection: {self._refused.result()}")
            if not dialling.done():
                raise BusUnavailable(f"cannot reach NATS at {self._servers} within {limit_s} s: {self._last_error}")
            dialling.result()
        except (nats_errors.Error, OSError, ValueError) as error:
            message = self._redactor.clean(str(error))
            raise BusUnavailable(f"cannot connect to NATS at {self._servers}: {message}") from None
        finally:
            self._refused.cancel()
            await stop_dial(dialling)
        await self._inbox.open()
        self._connected.set()

    def _check_tls(self) -> None:
        """What is wrong from the start is said at once; what goes wrong later is tried again."""
        try:
            if self._tls is not None:
                self._tls.context()
        except TlsUnusable as error:
            raise BusUnauthenticated(f"cannot dial NATS at {self._servers}: {error}") from None

    async def _abandon(self) -> None:
        self._closed = True
        # A client that never got as far as its write queue has nothing to close, and fails when asked to.
        if self._client._flush_queue is not None:
            await self._client.close()

    @property
    def state(self) -> BusState:
        if self._closed or self._client.is_closed:
            return BusState.CLOSED
        return BusState.CONNECTED if self._connected.is_set() else BusState.RECONNECTING

    @property
    def epoch(self) -> int:
        """Counts lost connections: what was in flight in an earlier epoch will not be answered in this one."""
        return self._epoch

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    def may_wait_to_write(self, size: int) -> bool:
        """Whether a message of this size could have to wait for the socket, and so needs a timer around it."""
        # Not the client's own is_connected: that is true again before the inbox has been subscribed to again.
        return not self._connected.is_set() or self._client.pending_data_size + size > OUTBOUND_BUFFER_BYTES // 2

    @property
    def makes_streams(self) -> bool:
        return self._settings.makes_streams

    @property
    def attempt_timeout_s(self) -> float:
        return self._attempt_timeout_s

    @property
    def request_timeout_s(self) -> float:
        return self._settings.request_timeout_s

    def __repr__(self) -> str:
        return f"Bus(name={self._name!r}, servers={self._servers!r}, state={self.state.value!r})"

    async def wait_connected(self, *, deadline_s: float) -> None:
        if self._connected.is_set():
            return
        if self.state is BusState.CLOSED:
            raise BusClosed(f"bus {self._name!r} is closed")
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes just as the connection is back.
            async with asyncio.timeout(deadline_s):
                await self._connected.wait()
        except TimeoutError:
            raise BusUnavailable(
                f"no connection to NATS at {self._servers} within {deadline_s:.3g} s: {self._last_error}"
            ) from None
        if self._closed:
            raise BusClosed(f"bus {self._name!r} is closed")

    async def send(self, subject: str, payload: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
        """Writes one message, without a promise of delivery. It waits while the socket is full, so hold it inside a
        deadline or use `post`.
        """
        size = len(payload) + (encoded_size(headers) if headers else 0)
        # The server counts headers too and cuts the connection of a client that exceeds the limit.
        if size > self._client.max_payload:
            raise PayloadTooLarge(
                f"message of {size} bytes to {subject!r} exceeds the server's max_payload of "
                f"{self._client.max_payload}; put it in object storage and send a reference",
                size=size,
                limit=self._client.max_payload,
            )
        task = asyncio.current_task()
        cancellations = task.cancelling() if task is not None else 0
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
        except nats_errors.ConnectionClosedError:
            raise BusClosed(f"bus {self._name!r} is closed") from None
        except (nats_errors.BadSubjectError, nats_errors.BadHeaderError) as error:
            raise InvalidName(f"{subject[:80]!r}: {error}") from None
        except nats_errors.Error as error:
            message = self._redactor.clean(str(error))
            raise BusUnavailable(f"cannot write to NATS at {self._servers}: {message}") from None
        # nats-py swallows a cancellation that arrives while it waits for the socket; a swallowed deadline is a hang.
        if task is not None and task.cancelling() > cancellations:
            raise asyncio.CancelledError

    async def post(self, subject: str, payload: bytes, *, headers: Headers | None = None, deadline_s: float) -> None:
        """`send` with a deadline of its own."""
        try:
            async with asyncio.timeout(deadline_s):
                await self.send(subject, payload, headers=headers)
        except TimeoutError:
            raise BusTimeout(f"could not write to {subject!r} within {deadline_s:.3g} s") from None

    async def ask(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | None = None,
        deadline_s: float,
        repeat_every_s: float | None = None,
    ) -> Msg:
        """Sends a question and returns the first answer, whatever it says; NoResponders when there is no responder.
        With `repeat_every_s` it is sent again as long as there is no answer: a responder that has died does not say so,
        and the next one does not know who had asked."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg | None] = loop.create_future()

        def settle(message: Msg | None) -> None:
            if not answer.done():
                answer.set_result(message)

        end = loop.time() + deadline_s
        await self.wait_connected(deadline_s=deadline_s)
        replies: list[str] = []
        try:
            async with asyncio.timeout_at(end):
                while not answer.done():
                    # Each time to a subject of its own: a responder may answer once wherever it is asked to.
                    replies.append(self.register(CallbackSlot(settle, lambda: settle(None))))
                    await self.send(subject, payload, reply=replies[-1], headers=headers)
                    await asyncio.wait({answer}, timeout=repeat_every_s)
                message = answer.result()
        except TimeoutError:
            raise BusTimeout(f"no answer on {subject!r} within {deadline_s:.3g} s") from None
        finally:
            for reply in replies:
                self.release(reply)
        if message is None:
            raise BusUnavailable(f"the connection was lost while waiting for an answer on {subject!r}")
        if status_of(message) == "503":
            raise NoResponders(f"no responder listens on {subject!r}")
        return message

    def register(self, slot: Slot) -> str:
        return self._inbox.register(slot)

    def release(self, reply_subject: str) -> None:
        if reply_subject:
            self._inbox.release(reply_subject)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def subscribe(self, subject: str, **options: Any) -> Subscription:
        """A core subscription, replayed by the client after every reconnect."""
        return await self._subscribed(subject, self._client.subscribe(subject, **options))

    async def subscribe_prompt(self, subject: str, deliver: Callable[[Msg], None]) -> Subscription:
        """The same, for many messages to an inbox of one's own: see EnduringClient."""
        return await self._subscribed(subject, self._client.subscribe_prompt(subject, deliver))

    async def _subscribed(self, subject: str, subscribing: Coroutine[Any, Any, Subscription]) -> Subscription:
        try:
            return await subscribing
        except nats_errors.ConnectionClosedError:
            raise BusClosed(f"bus {self._name!r} is closed") from None
        except nats_errors.Error as error:
            raise BusUnavailable(f"cannot subscribe to {subject!r}: {self._redactor.clean(str(error))}") from None

    async def unsubscribe(self, subscription: Subscription) -> None:
        try:
            await subscription.unsubscribe()
        except nats_errors.Error as error:
            self._log.debug("bus_unsubscribe_skipped", reason=str(error))

    def on_lost(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` whenever the connection goes; returns what removes it again."""
        self._lost_listeners.add(listener)
        return lambda: self._lost_listeners.discard(listener)

    async def close(self, *, deadline_s: float = CLOSE_DEADLINE_S) -> None:
        """Lets subscriptions finish what they hold, flushes, closes; past the deadline it just closes."""
        if self._closed:
            return
        self._closed = True
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(deadline_s):
                await self._client.drain()
        except (TimeoutError, nats_errors.Error) as error:
            self._log.info("bus_closed_without_drain", reason=str(error) or "deadline passed")
        finally:
            await self._client.close()
            self._forget_outstanding()
            # A task that waits for a connection wakes up to find the bus closed.
            self._connected.set()
        if task is not None and task.cancelling() > cancellations:
            # nats-py swallows a cancellation while it closes: without this the task would go on.
            raise asyncio.CancelledError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _next_server(self, servers: list[Server], info: dict[str, Any]) -> tuple[Server | None, float]:
        if self._attempt == 0:
            # The one that was lost may have vanished, which a dial notices late.
            lost = self._client.connected_netloc
            servers = [server for server in servers if server.uri.netloc != lost] or servers
        fewest = min(server.reconnects for server in servers)
        delay = self._backoff.delay_s(self._attempt)
        self._attempt += 1
        return self._choose([server for server in servers if server.reconnects == fewest]), delay

    async def _on_error(self, error: Exception) -> None:
        text = self._redactor.clean(str(error)) or type(error).__name__
        self._last_error = text
        self._log.warning("bus_error", error=text, kind=type(error).__name__)
        refusal = any(sign in text.lower() for sign in _REFUSALS)
        if (refusal or isinstance(error, nats_errors.SecureConnWantedError)) and not self._refused.done():
            self._refused.set_result(text)

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        self._epoch += 1
        self._forget_outstanding()
        if not self._closed:
            self._log.warning("bus_disconnected", error=self._last_error)

    def _forget_outstanding(self) -> None:
        self._inbox.connection_lost()
        for listener in tuple(self._lost_listeners):
            listener()

    async def _on_reconnected(self) -> None:
        self._attempt = 0
        self._connected.set()
        self._log.info("bus_reconnected", epoch=self._epoch)

    async def _on_closed(self) -> None:
        self._log.info("bus_closed")
