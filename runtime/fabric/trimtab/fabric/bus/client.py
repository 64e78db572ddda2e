"""nats-py's client with the behaviours corrected that would end a connection for good or leak credentials.

Each override names what it corrects. They touch private methods, so the integration tests provoke every one of them.
"""

from __future__ import annotations

from nats.aio.client import Client
from nats.errors import AuthorizationError, SecureConnWantedError
from nats.errors import Error as NatsError


class EnduringClient(Client):
    """A client that reconnects after anything the server says, and never speaks plain text when TLS was asked for."""

    def __init__(self, *, require_tls: bool) -> None:
        super().__init__()
        self._require_tls = require_tls

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

    def _connect_command(self) -> bytes:
        # Built after the TLS upgrade and before credentials are sent. Upstream upgrades only when the server asks for
        # it, so anyone in between could have the password in plain text by not asking.
        if self._require_tls and not self._server_info.get("tls_required", False):
            raise SecureConnWantedError
        return super()._connect_command()
