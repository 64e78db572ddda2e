"""What happened to a block between two versions, found by comparing: a few new values, or a whole new content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec.kernels import Integer, kernel

Bytes: TypeAlias = npt.NDArray[np.uint8]
Elements: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Positions: TypeAlias = npt.NDArray[np.uint32]

SPARSE_SHARE = 0.25
"""Above this share of changed elements a block is taken whole: listing them would take more room than it saves."""
_STRIDE = 16
_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Sparse:
    """New values of a few elements; positions are strictly increasing element indices in the block."""

    positions: Positions
    values: Elements


@dataclass(frozen=True)
class Whole:
    """The block's new content."""

    content: Bytes


Change: TypeAlias = Sparse | Whole


def elements(content: Bytes, width: int) -> Elements:
    """The block as unsigned integers of its element width, without copying."""
    return content.view(_TYPES[width])


def find_change(base: Bytes, target: Bytes, *, width: int) -> Change | None:
    """None when the blocks are equal. A Whole refers to `target` itself."""
    old, new = elements(base, width), elements(target, width)
    room = int(old.size * SPARSE_SHARE)
    # Pages that are never written to take no memory.
    positions = np.empty(room + _STRIDE, dtype=np.uint32)
    count = int(_scan(old, new, positions, room))
    if count == 0:
        return None
    if count > room:
        return Whole(target)
    found = positions[:count].copy()
    return Sparse(found, new[found])


def apply_change(change: Change, content: Bytes, *, width: int) -> None:
    if isinstance(change, Whole):
        content[:] = change.content
    else:
        elements(content, width)[change.positions] = change.values


@kernel
def _scan(old: Elements, new: Elements, positions: Positions, room: int) -> Integer:
    """Positions of differing elements. Stops when there are more than `room`: the caller then wants none of them."""
    count: Integer = 0
    whole = old.size // _STRIDE * _STRIDE
    for start in range(0, whole, _STRIDE):
        different = old[0] ^ old[0]
        for offset in range(_STRIDE):
            different |= old[start + offset] ^ new[start + offset]
        if different != 0:
            if count > room:
                return count
            # Written always and kept only if it differs: a branch here would be mispredicted most of the time.
            for offset in range(_STRIDE):
                positions[count] = start + offset
                count += np.int64(old[start + offset] != new[start + offset])
    for position in range(whole, old.size):
        if old[position] != new[position] and count <= room:
            positions[count] = position
            count += 1
    return count
