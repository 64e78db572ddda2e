"""Byte planes: the lowest bytes of all numbers, then the second ones, …: each kind compresses by its own rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec.change import Elements
from trimtab.weights.codec.kernels import kernel

Planes = npt.NDArray[np.uint8]


def split(numbers: Elements, *, turns: int = 0) -> list[Planes]:
    """Least significant plane first, of the numbers rotated left by so many bits."""
    planes = np.empty((numbers.dtype.itemsize, numbers.size), dtype=np.uint8)
    _split(numbers, turns, planes)
    return list(planes)


def join(planes: Sequence[Planes], numbers: Elements) -> None:
    numbers[:] = planes[0]
    for place, plane in enumerate(planes[1:], start=1):
        _add(plane, np.uint64(8 * place), numbers)


@kernel
def _split(numbers: Elements, turns: int, planes: npt.NDArray[np.uint8]) -> None:
    bits = 8 * planes.shape[0]
    for place in range(planes.shape[0]):
        plane = planes[place]
        # Bit `shift` of the number is bit 0 of the plane; what lies below bit 0 comes from the top.
        shift = (8 * place - turns) % bits
        low, high = np.uint64(shift), np.uint64((bits - shift) % bits)
        wraps = shift + 8 > bits
        for index in range(numbers.size):
            number = np.uint64(numbers[index])
            plane[index] = (number >> low) | (number << high) if wraps else number >> low


@kernel
def _add(plane: Planes, shift: np.uint64, numbers: Elements) -> None:
    for index in range(numbers.size):
        numbers[index] |= np.uint64(plane[index]) << shift
