"""zstd with the bounds the wire needs: nothing is decompressed before its size is known and allowed.

zstd contexts are costly to make and must not be shared between threads, so every thread keeps its own.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import zstandard

from trimtab.fabric.wire.errors import MalformedError

Buffer = bytes | bytearray | memoryview

# What we write stays below this; a frame that asks for more wants our memory, not its data.
_MAX_WINDOW = 1 << 23
# Byte planes hold entropy, hardly any repetition: a small table and long matches are faster than level 1 and as small.
_PLANES = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    chain_log=6,
    hash_log=10,
    min_match=7,
    write_content_size=True,
    write_checksum=False,
)


class _Contexts(threading.local):
    def __init__(self) -> None:
        self.text = zstandard.ZstdCompressor(level=3, write_checksum=False)
        self.planes = zstandard.ZstdCompressor(compression_params=_PLANES)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)


_contexts = _Contexts()


def compress_text(data: Buffer) -> bytes:
    """For MessagePack bodies: names and words."""
    return _contexts.text.compress(data)


def compress_planes(planes: npt.NDArray[np.uint8]) -> bytes:
    """For the byte planes of an array, one per row: one frame in which every plane has blocks of its own."""
    stream = _contexts.planes.compressobj(size=planes.nbytes)
    blocks: list[bytes] = []
    for plane in planes:
        blocks.append(stream.compress(plane))
        blocks.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    blocks.append(stream.flush())
    return b"".join(blocks)


def decompress(data: Buffer, *, length: int, field: str) -> bytes:
    """Exactly `length` bytes, which the caller has bounded, or a refusal before anything that size is allocated."""
    try:
        declared = zstandard.frame_content_size(data)
        if declared != length:
            raise MalformedError(f"compressed data declares {declared} bytes instead of {length}", field=field)
        plain = _contexts.decompressor.decompress(data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedError(f"not valid zstd: {error}", field=field) from None
    if len(plain) != length:
        raise MalformedError(f"compressed data holds {len(plain)} bytes instead of {length}", field=field)
    return plain
