"""Number arrays in fewer bytes: one byte plane after the other, each with statistics of its own.

Token ids use three of four bytes and logprobs have random mantissas below a very regular exponent. Interleaved, a
compressor sees noise; apart, the noisy planes pass as they are, the regular ones shrink, and both cost less time.
Short arrays stay plain: the frame compresses them together with the rest of a small message.

    count u32 | layout u32 | count little-endian items, or one zstd frame of their byte planes, least significant first
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.fabric.wire.compression import compress_planes, decompress
from trimtab.fabric.wire.errors import InvalidFieldError, MalformedError, OversizeError

_HEAD = struct.Struct("<II")
_PLAIN, _PLANES = 0, 1
_ITEM = 4
PLANES_FROM = 1024


def pack(array: npt.NDArray[Any]) -> bytes:
    """A one-dimensional array of a four-byte type as bytes."""
    if array.ndim != 1 or array.dtype.itemsize != _ITEM:
        raise InvalidFieldError(f"expected one dimension of 4-byte items, got {array.ndim} of {array.dtype}")
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    if len(array) >= PLANES_FROM:
        packed = compress_planes(np.ascontiguousarray(little.view(np.uint8).reshape(-1, _ITEM).T))
        if len(packed) < little.nbytes:
            return _HEAD.pack(len(array), _PLANES) + packed
    return _HEAD.pack(len(array), _PLAIN) + little.tobytes()


def unpack(data: bytes, little: np.dtype[Any], *, max_items: int, field: str) -> npt.NDArray[Any]:
    """The read-only array of a little-endian type in those bytes, of at most max_items."""
    if len(data) < _HEAD.size:
        raise MalformedError("array ends within its head", field=field)
    count, layout = _HEAD.unpack_from(data)
    if count > max_items:
        raise OversizeError(f"{count} items, at most {max_items} are accepted", field=field)
    if layout == _PLAIN:
        if len(data) != _HEAD.size + count * _ITEM:
            raise MalformedError(f"array of {len(data)} bytes declares {count} items", field=field)
        array = np.frombuffer(data, dtype=little, offset=_HEAD.size)
    elif layout == _PLANES:
        planes = decompress(memoryview(data)[_HEAD.size :], length=count * _ITEM, field=field)
        items = np.empty((count, _ITEM), dtype=np.uint8)
        for position, plane in enumerate(np.frombuffer(planes, dtype=np.uint8).reshape(_ITEM, count)):
            items[:, position] = plane  # four strided copies: twice as fast as one transposed copy
        items.flags.writeable = False
        array = items.reshape(-1).view(little)
    else:
        raise MalformedError(f"unknown array layout {layout}", field=field)
    return array if little.isnative else array.astype(little.newbyteorder("="))
