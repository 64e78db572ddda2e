"""Byte streams inside a coded block: several, each compressed by zstd on its own, in one payload.

zstd here is an entropy stage: streams hold one kind of byte each, and nothing in them repeats.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import zstandard

_LENGTHS = struct.Struct("<QQ")


class DamagedPayload(ValueError):
    """A coded block that does not decode: it was altered, cut, or made for another base."""


def pack(streams: Sequence[npt.NDArray[np.generic]], *, level: int = 1) -> bytes:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=False)
    parts: list[bytes] = []
    for stream in streams:
        body = compressor.compress(np.ascontiguousarray(stream).data.cast("B")) if stream.size else b""
        parts += (_LENGTHS.pack(stream.nbytes, len(body)), body)
    return b"".join(parts)


def unpack(payload: bytes | memoryview, *, limits: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """The streams, of which number `i` may have at most `limits[i]` bytes: a damaged length allocates nothing."""
    decompressor = zstandard.ZstdDecompressor()
    view = memoryview(payload)
    streams = []
    offset = 0
    for limit in limits:
        if offset + _LENGTHS.size > len(view):
            raise DamagedPayload("the payload ends before its last stream")
        size, length = _LENGTHS.unpack_from(view, offset)
        offset += _LENGTHS.size
        if size > limit or offset + length > len(view):
            raise DamagedPayload(f"a stream claims {size} bytes from {length}, more than there can be")
        streams.append(_decompressed(decompressor, view[offset : offset + length], size))
        offset += length
    if offset != len(view):
        raise DamagedPayload(f"{len(view) - offset} bytes follow the last stream")
    return streams


def _decompressed(decompressor: zstandard.ZstdDecompressor, body: memoryview, size: int) -> npt.NDArray[np.uint8]:
    if size == 0:
        if len(body):
            raise DamagedPayload("an empty stream has content")
        return np.empty(0, dtype=np.uint8)
    try:
        content = decompressor.decompress(body, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedPayload(f"a stream does not decompress: {error}") from None
    if len(content) != size:
        raise DamagedPayload(f"a stream has {len(content)} bytes in place of {size}")
    return np.frombuffer(content, dtype=np.uint8)
