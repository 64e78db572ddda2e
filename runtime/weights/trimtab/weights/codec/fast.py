"""Fast mode: gaps between changes as one byte stream, sizes of changes as others, each Huffman-coded by zstd.

Costs little more than comparing the weights. It knows nothing of the old values, so it cannot go below the entropy of
independent positions; compact.py does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec import planes
from trimtab.weights.codec.change import Elements, Positions, Sparse
from trimtab.weights.codec.kernels import kernel
from trimtab.weights.codec.ordering import difference, moved
from trimtab.weights.codec.streams import DamagedPayload, pack, unpack
from trimtab.weights.layout import ElementType

_ESCAPE = 255
_WIDE_GAP = 400
"""From this mean gap on the low byte of a gap is a stream of its own: it is noise, and the rest is small."""


def encode(base: Elements, change: Sparse, element: ElementType) -> bytes:
    count = change.positions.size
    wide = base.size > _WIDE_GAP * count
    low = np.empty(count if wide else 0, dtype=np.uint8)
    high = np.empty(count + base.size // _ESCAPE + 1, dtype=np.uint8)
    used = _write_gaps(change.positions, wide, low, high)
    zigzags = np.empty(count, dtype=base.dtype)
    _write_differences(base, change.positions, change.values, element.width * 8, element.sign_magnitude, zigzags)
    return pack([high[:used], low, *planes.split(zigzags)])


def decode(base: Elements, payload: bytes | memoryview, element: ElementType, out: Elements) -> Positions:
    """`out` holds the base and gets the changes; returns where they are."""
    most = base.size
    high, low, *values = unpack(payload, limits=[2 * most + 1, most, *([most] * element.width)])
    count = values[0].size
    if any(plane.size != count for plane in values) or low.size not in (0, count):
        raise DamagedPayload("streams of different lengths")
    zigzags = np.empty(count, dtype=base.dtype)
    planes.join(values, zigzags)
    positions = np.empty(count, dtype=np.uint32)
    if not _read_gaps(high, low, count, base.size, positions):
        raise DamagedPayload("gaps that lead out of the block, or end too soon")
    _move(base, positions, zigzags, element.width * 8, element.sign_magnitude, out)
    return positions


@kernel
def _write_gaps(positions: Positions, wide: bool, low: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8]) -> int:
    used = 0
    expected = np.int64(0)
    for index in range(positions.size):
        rest = np.int64(positions[index]) - expected
        expected = np.int64(positions[index]) + 1
        if wide:
            low[index] = rest & 0xFF
            rest >>= 8
        while rest >= _ESCAPE:
            high[used] = _ESCAPE
            used += 1
            rest -= _ESCAPE
        high[used] = rest
        used += 1
    return used


@kernel
def _read_gaps(
    high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint8], count: int, size: int, positions: Positions
) -> bool:
    used = 0
    expected = np.int64(0)
    for index in range(count):
        rest = np.int64(0)
        while used < high.size and high[used] == _ESCAPE:
            rest += _ESCAPE
            used += 1
        if used == high.size:
            return False
        rest += high[used]
        used += 1
        if low.size:
            rest = (rest << 8) | low[index]
        position = expected + rest
        if position >= size:
            return False
        positions[index] = position
        expected = position + 1
    return used == high.size


@kernel
def _write_differences(
    base: Elements, positions: Positions, values: Elements, bits: int, sign_magnitude: bool, zigzags: Elements
) -> None:
    for index in range(positions.size):
        zigzags[index] = difference(base[positions[index]], values[index], bits, sign_magnitude)


@kernel
def _move(
    base: Elements, positions: Positions, zigzags: Elements, bits: int, sign_magnitude: bool, out: Elements
) -> None:
    for index in range(positions.size):
        position = positions[index]
        out[position] = moved(base[position], zigzags[index], bits, sign_magnitude)
