"""A stream as a file, and back: its messages keep their numbers, which records are signed with and name rows by. The
server writes and reads the file, so nothing here depends on what is in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusTimeout
from trimtab.fabric.bus.inbox import status_of
from trimtab.fabric.bus.jetstream_api import ApiFault, Json, error_from

CHUNK_BYTES = 256 << 10
_CHUNK_DEADLINE_S = 60.0
_WAITING_CHUNKS = 256
"""More than the server sends before it waits to be told that they came."""
_DONE = frozenset({None, "204"})


class CopyIncomplete(BusError):
    """The server ended the copy before its end."""


@dataclass(frozen=True, kw_only=True)
class StreamCopy:
    """What beside the file is needed to make the stream anew: how it was set up, and its counts."""

    config: Json
    state: Json

    @property
    def first_sequence(self) -> int:
        return int(self.state["first_seq"])

    @property
    def messages(self) -> int:
        return int(self.state["messages"])


async def copy_stream(bus: Bus, name: str, target: Path, *, deadline_s: float) -> StreamCopy:
    """All messages of a moment, without consumers. Raises BusNotFound where there is no such stream."""
    with target.open("wb") as file:
        async with _chunks(bus) as (inbox, chunks):
            request = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES}
            answer = await _asked(bus, f"STREAM.SNAPSHOT.{name}", request, deadline_s=deadline_s)
            while True:
                try:
                    async with asyncio.timeout(_CHUNK_DEADLINE_S):
                        chunk = await chunks.get()
                except TimeoutError:
                    raise BusTimeout(f"no more of stream {name!r} came within {_CHUNK_DEADLINE_S:.3g} s") from None
                if not chunk.data:
                    if (status := status_of(chunk)) not in _DONE:
                        raise CopyIncomplete(f"the server ended the copy of stream {name!r} with status {status}")
                    break
                await asyncio.to_thread(file.write, chunk.data)
                # It asks with some of them whether they came, and waits with the next until it knows.
                if chunk.reply:
                    await bus.post(chunk.reply, b"", deadline_s=_CHUNK_DEADLINE_S)
    return StreamCopy(config=answer["config"], state=answer["state"])


async def restore_stream(bus: Bus, copy: StreamCopy, source: Path, *, deadline_s: float) -> None:
    """Make the stream as it was. Raises BusRefused where there is one of that name."""
    name = str(copy.config["name"])
    request = {"config": copy.config, "state": copy.state}
    answer = await _asked(bus, f"STREAM.RESTORE.{name}", request, deadline_s=deadline_s)
    target = str(answer["deliver_subject"])
    with source.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            await bus.ask(target, chunk, deadline_s=_CHUNK_DEADLINE_S)
    _checked((await bus.ask(target, deadline_s=deadline_s)).data, doing=f"JetStream restore of {name}")


@asynccontextmanager
async def _chunks(bus: Bus) -> AsyncIterator[tuple[str, asyncio.Queue[Msg]]]:
    queue: asyncio.Queue[Msg] = asyncio.Queue(_WAITING_CHUNKS)
    inbox = bus.new_inbox()

    async def take(message: Msg) -> None:
        await queue.put(message)

    subscription = await bus.subscribe(inbox, cb=take)
    try:
        yield inbox, queue
    finally:
        await bus.unsubscribe(subscription)


async def _asked(bus: Bus, operation: str, body: Json, *, deadline_s: float) -> Json:
    """Once: a second request would begin a second copy into the same place."""
    message = await bus.ask(f"$JS.API.{operation}", json.dumps(body).encode(), deadline_s=deadline_s)
    return _checked(message.data, doing=f"JetStream {operation}")


def _checked(body: bytes, *, doing: str) -> Json:
    answer = cast(Json, json.loads(body))
    if "error" in answer:
        raise error_from(msgspec.convert(answer["error"], ApiFault), doing=doing)
    return answer
