"""The frame around every message, and the only two calls most code needs: encode and decode.

    magic 4s | kind u8 | major u8 | minor u8 | flags u8 | stored u32 | length u32 | xxh3 u64 | stored bytes

All little-endian. `stored` is the length of what follows, `length` of the MessagePack body after decompression. The
checksum covers the sixteen bytes before it and everything after it, so no flipped bit is ever read as data. It is no
signature: who may publish is NATS's business, and the body is checked as if it came from an enemy.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import xxhash

from trimtab.fabric.wire.compression import Buffer, compress_text, decompress
from trimtab.fabric.wire.errors import (
    ChecksumError,
    KindError,
    MagicError,
    MalformedError,
    OversizeError,
    TrailingBytesError,
    TruncatedError,
    VersionError,
)
from trimtab.fabric.wire.message import Message, from_body, to_body

MAGIC = b"TRIM"
HEAD = struct.Struct("<4sBBBBII")
CHECKSUM = struct.Struct("<Q")
OVERHEAD = HEAD.size + CHECKSUM.size
FLAG_ZSTD = 1
# Below this, zstd costs more time than it saves bytes.
COMPRESS_FROM = 512

M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The message as one frame. Raises a WireError when a reader would refuse it."""
    return framed(type(message), to_body(message))


def framed(cls: type[Message], body: bytes) -> bytes:
    """The frame around a body, which is what a reader will look at: nothing in it is checked here but its size."""
    if len(body) > cls.MAX_BYTES:
        raise OversizeError(f"{cls.__name__} of {len(body)} bytes, at most {cls.MAX_BYTES} can be sent")
    stored, flags = body, 0
    if COMPRESS_FROM <= len(body) <= cls.COMPRESS_TO:
        packed = compress_text(body)
        if len(packed) < len(body):
            stored, flags = packed, FLAG_ZSTD
    head = HEAD.pack(MAGIC, cls.KIND, cls.MAJOR, cls.MINOR, flags, len(stored), len(body))
    return b"".join((head, CHECKSUM.pack(checksum(head, stored)), stored))


def decode(data: Buffer, *accepted: type[M]) -> M:
    """The message in a frame, which must be of one of the accepted types. Raises a WireError for anything else."""
    view = memoryview(data)
    if view[:4] != MAGIC:
        if len(view) < len(MAGIC):
            raise TruncatedError(f"{len(view)} bytes, a frame has at least {OVERHEAD}")
        raise MagicError(f"starts with {bytes(view[:4])!r}, expected {MAGIC!r}")
    if len(view) < OVERHEAD:
        raise TruncatedError(f"{len(view)} bytes, a frame has at least {OVERHEAD}")
    _, kind, major, _, flags, stored_length, length = HEAD.unpack_from(view)
    cls = _accepted(kind, accepted)
    if major != cls.MAJOR:
        raise VersionError(f"{cls.__name__} of major version {major}, this reader knows {cls.MAJOR}")
    if flags & ~FLAG_ZSTD:
        raise VersionError(f"{cls.__name__} with unknown flags {flags:#x}")
    for size in (stored_length, length):
        if size > cls.MAX_BYTES:
            raise OversizeError(f"{cls.__name__} of {size} bytes, at most {cls.MAX_BYTES} are accepted")
    stored = view[OVERHEAD:]
    if len(stored) < stored_length:
        raise TruncatedError(f"{len(stored)} of {stored_length} bytes arrived")
    if len(stored) > stored_length:
        raise TrailingBytesError(f"{len(stored) - stored_length} bytes after the end of the frame")
    if CHECKSUM.unpack_from(view, HEAD.size)[0] != checksum(view[: HEAD.size], stored):
        raise ChecksumError(f"{cls.__name__} was damaged on its way")
    if flags & FLAG_ZSTD:
        if length > cls.COMPRESS_TO:
            raise OversizeError(f"compressed {cls.__name__} of {length} bytes, at most {cls.COMPRESS_TO} are accepted")
        return from_body(decompress(stored, length=length, field="$"), cls)
    if stored_length != length:
        raise MalformedError(f"uncompressed body of {stored_length} bytes declares {length}")
    return from_body(stored, cls)


def kind_of(data: Buffer) -> int | None:
    """Which kind of message a frame says it holds, before anything in it is believed; None where it is no frame."""
    view = memoryview(data)
    return view[len(MAGIC)] if len(view) >= OVERHEAD and view[: len(MAGIC)] == MAGIC else None


def checksum(head: Buffer, stored: Buffer) -> int:
    """xxh3 of the stored bytes, seeded by the head, so that both are covered without joining them."""
    return xxhash.xxh3_64_intdigest(stored, seed=xxhash.xxh3_64_intdigest(head))


def _accepted(kind: int, accepted: tuple[type[M], ...]) -> type[M]:
    for cls in accepted:
        if kind == cls.KIND:
            return cls
    raise KindError(f"message kind {kind}, expected {' or '.join(f'{cls.__name__} ({cls.KIND})' for cls in accepted)}")
