"""Byte planes: the lowest bytes of all numbers, then the second ones, …: each kind compresses by its own rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec.change import Elements
from trimtab.weights.codec.kernels import kernel

Planes = npt.NDArray[np.uint8]


def split(numbers: Elements) -> list[Planes]:
    """Least significant plane first."""
    planes = np.empty((numbers.dtype.itemsize, numbers.size), dtype=np.uint8)
    _split(numbers, planes)
    return list(planes)


def join(planes: Sequence[Planes], numbers: Elements) -> None:
    numbers[:] = planes[0]
    for place, plane in enumerate(planes[1:], start=1):
        _add(plane, np.uint64(8 * place), numbers)


@kernel
def _split(numbers: Elements, planes: npt.NDArray[np.uint8]) -> None:
    for place in range(planes.shape[0]):
        plane = planes[place]
        shift = np.uint64(8 * place)
        for index in range(numbers.size):
            plane[index] = np.uint64(numbers[index]) >> shift


@kernel
def _add(plane: Planes, shift: np.uint64, numbers: Elements) -> None:
    for index in range(numbers.size):
        numbers[index] |= np.uint64(plane[index]) << shift
