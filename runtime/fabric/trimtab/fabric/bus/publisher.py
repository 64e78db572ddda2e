"""Publishing one message to a stream: acknowledged, deduplicated by its id, repeated until the deadline."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusUnavailable, InvalidName, NoResponders
from trimtab.fabric.bus.inbox import status_of
from trimtab.fabric.bus.jetstream_api import ApiFault, error_from
from trimtab.fabric.bus.names import Headers, checked_headers, checked_subject
from trimtab.fabric.bus.retry import until_deadline

MESSAGE_ID_HEADER = "Nats-Msg-Id"


@dataclass(frozen=True)
class Acknowledgement:
    """The stream has the message on its storage. `duplicate`: it had it already, perhaps from an attempt whose answer
    was lost, and `sequence` is that one's.
    """

    stream: str
    sequence: int
    duplicate: bool


class _Answer(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: ApiFault | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def read_acknowledgement(message: Msg, *, subject: str, size: int) -> Acknowledgement | BusError:
    if status_of(message) == "503":
        return NoResponders(f"no stream takes {subject!r}, or JetStream is still starting")
    try:
        answer = _decode(message.data)
    except msgspec.DecodeError:
        return BusUnavailable(f"what answered on {subject!r} is not a stream")
    if answer.error is not None:
        return error_from(answer.error, doing=f"publish to {subject!r}", size=size)
    return Acknowledgement(stream=answer.stream, sequence=answer.seq, duplicate=answer.duplicate)


def stamped(headers: Headers | None, message_id: str) -> Headers:
    if not message_id:
        raise InvalidName("message_id must not be empty: repeating a publish is only safe with one")
    return checked_headers({**(headers or {}), MESSAGE_ID_HEADER: message_id})


async def publish(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    message_id: str,
    headers: Headers | None = None,
    deadline_s: float | None = None,
) -> Acknowledgement:
    """Keep the deadline below the stream's dedupe window: past it a repeated message would be stored twice."""
    checked_subject(subject)
    all_headers = stamped(headers, message_id)

    async def attempt(timeout_s: float) -> Acknowledgement:
        message = await bus.ask(subject, payload, headers=all_headers, deadline_s=timeout_s)
        outcome = read_acknowledgement(message, subject=subject, size=len(payload))
        if isinstance(outcome, BusError):
            raise outcome
        return outcome

    deadline_s = bus.request_timeout_s if deadline_s is None else deadline_s
    return await until_deadline(attempt, deadline_s=deadline_s, attempt_timeout_s=bus.attempt_timeout_s)
