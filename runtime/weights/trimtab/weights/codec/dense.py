"""Dense mode: the size of every element's change, changed or not. For blocks in which many weights moved a little."""

from __future__ import annotations

import numpy as np

from trimtab.weights.codec import planes
from trimtab.weights.codec.change import Elements
from trimtab.weights.codec.kernels import kernel
from trimtab.weights.codec.ordering import difference, moved
from trimtab.weights.codec.streams import DamagedPayload, pack, unpack
from trimtab.weights.layout import ElementType


def encode(base: Elements, target: Elements, element: ElementType) -> bytes:
    zigzags = np.empty_like(base)
    _differences(base, target, element.width * 8, element.sign_magnitude, zigzags)
    return pack(planes.split(zigzags))


def decode(base: Elements, payload: bytes | memoryview, element: ElementType, out: Elements) -> None:
    streams = unpack(payload, limits=[base.size] * element.width)
    if any(stream.size != base.size for stream in streams):
        raise DamagedPayload("a stream that does not cover the block")
    planes.join(streams, out)
    _move_all(base, out, element.width * 8, element.sign_magnitude)


@kernel
def _differences(base: Elements, target: Elements, bits: int, sign_magnitude: bool, zigzags: Elements) -> None:
    for index in range(base.size):
        zigzags[index] = difference(base[index], target[index], bits, sign_magnitude)


@kernel
def _move_all(base: Elements, out: Elements, bits: int, sign_magnitude: bool) -> None:
    for index in range(base.size):
        out[index] = moved(base[index], out[index], bits, sign_magnitude)
