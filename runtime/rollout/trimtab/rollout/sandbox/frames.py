"""What the two ends of a jail's socket say: a header in JSON, and then bytes whose lengths the header tells.

It is executed inside the walls too, with the standard library alone. Whoever reads says how much it takes.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

LENGTH = struct.Struct(">I")
MAX_HEADER_BYTES = 16 << 20
MAX_REPORT_HEADER_BYTES = 1 << 18


class FrameUnreadable(ValueError):
    """The other end says what nobody may."""


def packed(header: Mapping[str, Any], blobs: Sequence[bytes]) -> bytes:
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((LENGTH.pack(len(text)), text, *blobs))


def lengths(header: Mapping[str, Any], *, most: int) -> Sequence[int]:
    """Of the blobs that follow."""
    blobs = header.get("blobs")
    if not isinstance(blobs, list) or not all(type(length) is int and length >= 0 for length in blobs):
        raise FrameUnreadable("the lengths of what follows are missing")
    if sum(blobs) > most:
        raise FrameUnreadable(f"{sum(blobs)} bytes follow, and {most} are allowed")
    return blobs


def header_length(prefix: bytes, *, most: int = MAX_HEADER_BYTES) -> int:
    (length,) = LENGTH.unpack(prefix)
    if length > most:
        raise FrameUnreadable(f"a header of {length} bytes, and {most} are allowed")
    return int(length)


def header(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FrameUnreadable(f"the header is no JSON: {error}") from None
    except RecursionError:
        raise FrameUnreadable("the header is nested too deeply") from None
    if not isinstance(found, dict):
        raise FrameUnreadable("the header is no object")
    return found


def receive(connection: socket.socket, *, most: int) -> tuple[dict[str, Any], list[bytes]] | None:
    """The next one, or None where the other end has gone."""
    prefix = _exactly(connection, LENGTH.size)
    if prefix is None:
        return None
    text = _exactly(connection, header_length(prefix))
    if text is None:
        return None
    found = header(text)
    blobs = []
    for length in lengths(found, most=most):
        blob = _exactly(connection, length)
        if blob is None:
            return None
        blobs.append(blob)
    return found, blobs


class Reader(Protocol):
    """asyncio's StreamReader."""

    async def readexactly(self, n: int) -> bytes: ...


async def read(reader: Reader, *, most_header: int, most: int) -> tuple[dict[str, Any], list[bytes]]:
    """The next one. Raises FrameUnreadable, and what the reader raises where the other end has gone."""
    prefix = await reader.readexactly(LENGTH.size)
    found = header(await reader.readexactly(header_length(prefix, most=most_header)))
    return found, [await reader.readexactly(length) for length in lengths(found, most=most)]


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    received = bytearray(length)
    view = memoryview(received)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(received)
