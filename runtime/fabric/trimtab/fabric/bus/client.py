"""nats-py's client with the behaviours corrected that would end a connection for good or leak credentials, and a short
way for messages that come by the thousand.

Each override names what it corrects. They touch private methods, so the integration tests provoke every one of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import AuthorizationError, SecureConnWantedError
from nats.errors import Error as NatsError

from trimtab.fabric.tls import ClientTls


class EnduringClient(Client):
    """A client that reconnects after anything the server says, and never speaks plain text when TLS was asked for."""

    def __init__(self, *, tls: ClientTls | None, inbox_prefix: str = "_INBOX") -> None:
        super().__init__()
        # Upstream sets it when it connects; ours hands out inboxes before that.
        self._inbox_prefix = bytearray(inbox_prefix.encode())
        self._tls = tls
        self._prompt: dict[int, Callable[[Msg], None]] = {}

    @property
    def connected_netloc(self) -> str | None:
        """Of the server that it is connected to, or was last. Upstream's `connected_url` says nothing of one that was
        lost."""
        return self._current_server.uri.netloc if self._current_server is not None else None

    async def subscribe_prompt(self, subject: str, deliver: Callable[[Msg], None]) -> Subscription:
        """Messages go to `deliver` as they are read, without a queue and a task in between. It must be quick, and the
        subject one that is not written to before this returns.
        """
        subscription = await self.subscribe(subject)
        # Those that were unsubscribed since are forgotten here: the client does not say when it drops one.
        self._prompt = {sid: other for sid, other in self._prompt.items() if sid in self._subs}
        self._prompt[subscription._id] = deliver
        return subscription

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        deliver = self._prompt.get(sid)
        if deliver is None or sid not in self._subs:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            deliver(self._build_message(sid, subject, reply, data, await self._process_headers(headers)))
        except Exception as error:  # noqa: BLE001 - the read loop must outlive whatever a message does
            await self._error_cb(error)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        # Upstream parses them as an e-mail, in 13 microseconds where this takes 3.
        found = plain_headers(headers) if headers else None
        return await super()._process_headers(headers) if found is None else found

    async def _process_err(self, err_msg: str) -> None:
        # Upstream closes for ever on every -ERR line (expired authentication, too many connections); the servers say
        # such things while they reload or restart, so dial again. Permission errors leave the connection open.
        lowered = err_msg.lower()
        if "authorization violation" in lowered:
            error: NatsError = AuthorizationError()
        else:
            error = NatsError(f"nats: {err_msg.strip().strip(chr(39))}")
        self._err = error
        await self._error_cb(error)
        if "permissions violation" not in lowered:
            await self._process_op_err(error)

    async def _process_pong(self) -> None:
        # Upstream sets a result on the future of a ping whose waiter has given up; the InvalidStateError ends its read
        # loop without a reconnect.
        if self._pongs:
            waiter = self._pongs.pop(0)
            if not waiter.done():
                waiter.set_result(True)
            self._pongs_received += 1
            self._pings_outstanding = 0

    @property
    def ssl_context(self) -> ssl.SSLContext:
        # Asked for at every dial. Upstream keeps the context it was given when it first connected, and with it an
        # authority that has been renewed since.
        return super().ssl_context if self._tls is None else self._tls.context()

    def _connect_command(self) -> bytes:
        # Built after the TLS upgrade and before credentials are sent. Upstream upgrades only when the server asks for
        # it, so anyone in between could have the password in plain text by not asking.
        if self._tls is not None and not self._server_info.get("tls_required", False):
            raise SecureConnWantedError
        return super()._connect_command()


_VERSION = b"NATS/1.0\r\n"
_END = b"\r\n\r\n"


def plain_headers(raw: bytes) -> dict[str, str] | None:
    """Headers of the ordinary form; None for any other, such as one with a status."""
    if not raw.startswith(_VERSION) or not raw.endswith(_END):
        return None
    try:
        lines = raw[len(_VERSION) : -len(_END)].decode().split("\r\n")
    except UnicodeDecodeError:
        return None
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or " " in name or "\t" in name:
            return None
        found[name] = value.strip()
    return found


async def stop_dial(dialling: asyncio.Future[None]) -> None:
    """Ends a dial that was given up and looks at its outcome, which asyncio would otherwise complain about."""
    dialling.cancel()
    await asyncio.wait({dialling}, timeout=1.0)
    if dialling.done() and not dialling.cancelled():
        dialling.exception()
