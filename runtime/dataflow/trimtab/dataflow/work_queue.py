"""What a work queue has: messages that wait, or that a worker has. One by one, since a work queue has no second
consumer; what is on it is bounded by admission.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.message import Message

M = TypeVar("M", bound=Message)
_DEADLINE_S = 30.0
_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Queued(Generic[M]):
    """A message of the queue, with its number."""

    sequence: int
    message: M


async def queued(bus: Bus, stream: str, kind: type[M], *, subject: str = ">") -> list[Queued[M]]:
    """In their order. What cannot be read is left out."""
    state = (await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=_DEADLINE_S))["state"]
    first, end = int(state["first_seq"]), int(state["last_seq"]) + 1
    if not int(state["messages"]):
        return []
    size = -(-(end - first) // _AT_ONCE)
    starts = range(first, end, size)
    found = await asyncio.gather(
        *(_between(bus, stream, kind, subject, start, min(start + size, end)) for start in starts)
    )
    return list(chain.from_iterable(found))


async def _between(bus: Bus, stream: str, kind: type[M], subject: str, sequence: int, end: int) -> list[Queued[M]]:
    found: list[Queued[M]] = []
    while sequence < end:
        try:
            answer = await api_call(
                bus, f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": subject}, deadline_s=_DEADLINE_S
            )
        except BusNotFound:
            break
        message = answer["message"]
        at, sequence = int(message["seq"]), int(message["seq"]) + 1
        if at >= end:
            break
        try:
            found.append(Queued(sequence=at, message=decode(base64.b64decode(message["data"]), kind)))
        except WireError:
            continue
    return found
