"""A message as a consumer hands it out, and the ways to settle it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.bus.names import Headers

_ACK = b"+ACK"
_NAK = b"-NAK"
_TERM = b"+TERM"
_IN_PROGRESS = b"+WPI"


class Settlement(StrEnum):
    """SENT: on its way, may be lost with the connection. CONFIRMED: the server has recorded it. ALREADY_SETTLED: this
    delivery was settled before and nothing was sent.
    """

    SENT = "sent"
    CONFIRMED = "confirmed"
    ALREADY_SETTLED = "already-settled"


@dataclass(slots=True)
class Delivery:
    subject: str
    payload: bytes
    headers: Headers
    stream: str
    sequence: int
    consumer_sequence: int
    attempt: int
    pending: int
    timestamp_ns: int
    _bus: Bus
    _reply: str
    _settled: bool = False

    @classmethod
    def from_message(cls, bus: Bus, message: Msg) -> Delivery:
        tokens = message.reply.split(".")
        # $JS.ACK.<stream>…, or with two more tokens for domain and account: $JS.ACK.<domain>.<account>.<stream>…
        first = 2 if len(tokens) == 9 else 4
        stream, _, attempt, sequence, consumer_sequence, timestamp, pending = tokens[first : first + 7]
        return cls(
            subject=message.subject,
            payload=message.data,
            headers=message.headers or {},
            stream=stream,
            sequence=int(sequence),
            consumer_sequence=int(consumer_sequence),
            attempt=int(attempt),
            pending=int(pending),
            timestamp_ns=int(timestamp),
            _bus=bus,
            _reply=message.reply,
        )

    async def ack(self) -> Settlement:
        return await self._settle(_ACK)

    async def ack_confirmed(self, *, deadline_s: float) -> Settlement:
        """Waits until the server has recorded it. After an error it is not settled and may be called again."""
        if self._settled:
            return Settlement.ALREADY_SETTLED
        await self._bus.ask(self._reply, _ACK, deadline_s=deadline_s)
        self._settled = True
        return Settlement.CONFIRMED

    async def nak(self, *, delay_s: float = 0.0) -> Settlement:
        """Hands it back, to be delivered again after the delay."""
        body = _NAK
        if delay_s > 0:
            body += b" " + json.dumps({"delay": round(delay_s * 1e9)}).encode()
        return await self._settle(body)

    async def term(self, *, reason: str = "") -> Settlement:
        """Never deliver it again; the reason appears in the server's advisory."""
        return await self._settle(_TERM + (b" " + " ".join(reason.split()).encode() if reason else b""))

    async def in_progress(self) -> Settlement:
        """Restarts the acknowledgement clock; may be sent any number of times."""
        if self._settled:
            return Settlement.ALREADY_SETTLED
        await self._bus.post(self._reply, _IN_PROGRESS, deadline_s=self._bus.request_timeout_s)
        return Settlement.SENT

    async def _settle(self, body: bytes) -> Settlement:
        if self._settled:
            return Settlement.ALREADY_SETTLED
        self._settled = True
        try:
            await self._bus.post(self._reply, body, deadline_s=self._bus.request_timeout_s)
        except (BusTimeout, BusUnavailable):
            self._settled = False
            raise
        return Settlement.SENT
