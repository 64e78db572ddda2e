"""Frames made by hand: right in everything but what a test puts into them."""

from __future__ import annotations

from typing import Any

import msgspec
import zstandard

from trimtab.fabric.wire.envelope import CHECKSUM, FLAG_ZSTD, HEAD, MAGIC, OVERHEAD, checksum
from trimtab.fabric.wire.message import Message


def framed(cls: type[Message], stored: bytes, *, flags: int = 0, length: int | None = None) -> bytes:
    """Those bytes as the body of a frame of the next minor version, with a valid checksum."""
    size = len(stored) if length is None else length
    head = HEAD.pack(MAGIC, cls.KIND, cls.MAJOR, cls.MINOR + 1, flags, len(stored), size)
    return head + CHECKSUM.pack(checksum(head, stored)) + stored


def as_tree(message: Message) -> Any:
    """The map a message is on the wire."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message, enc_hook=type(message).enc_hook))


def body_of(frame: bytes) -> bytes:
    """The body of a frame, decompressed where it must be."""
    stored = frame[OVERHEAD:]
    return zstandard.decompress(stored) if HEAD.unpack_from(frame)[4] & FLAG_ZSTD else stored
