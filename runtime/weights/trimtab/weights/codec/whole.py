"""Whole mode: a block without a base, for anchors and for content that has nothing to do with the old one.

Exponents of weights are few, signs and mantissas are noise: with the exponent in a byte of its own a float shrinks to
about two thirds.
"""

from __future__ import annotations

import numpy as np

from trimtab.weights.codec import planes
from trimtab.weights.codec.change import Elements
from trimtab.weights.codec.kernels import kernel
from trimtab.weights.codec.streams import DamagedPayload, pack, unpack
from trimtab.weights.layout import ElementType


def encode(target: Elements, element: ElementType) -> bytes:
    return pack(planes.split(target, turns=_turns(element)))


def decode(payload: bytes | memoryview, element: ElementType, out: Elements) -> None:
    streams = unpack(payload, limits=[out.size] * element.width)
    if any(stream.size != out.size for stream in streams):
        raise DamagedPayload("a stream that does not cover the block")
    planes.join(streams, out)
    bits = element.width * 8
    _turn(out, (bits - _turns(element)) % bits, bits, out)


def _turns(element: ElementType) -> int:
    """Bits to rotate left by, so that sign and exponent part: bfloat16 and float32 then have the exponent in the top
    byte alone.
    """
    return 1 if element.sign_magnitude and element.width > 1 else 0


@kernel
def _turn(numbers: Elements, turns: int, bits: int, out: Elements) -> None:
    if turns == 0:
        for index in range(numbers.size):
            out[index] = numbers[index]
        return
    left, right = np.uint64(turns), np.uint64(bits - turns)
    for index in range(numbers.size):
        number = np.uint64(numbers[index])
        out[index] = (number << left) | (number >> right)
