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
_WORD_BYTES = 8
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
    lanes = _WORD_BYTES // width
    words = base.nbytes // _WORD_BYTES
    room = int(base.nbytes // width * SPARSE_SHARE)
    # Pages that are never written to take no memory.
    positions = np.empty(room + 2 * lanes, dtype=np.uint32)
    old, new = (content[: words * _WORD_BYTES].view(np.uint64) for content in (base, target))
    count = int(_scan(old, new, positions, room, lanes, 8 * width))
    if count <= room:
        rest = np.flatnonzero(elements(base, width)[words * lanes :] != elements(target, width)[words * lanes :])
        positions[count : count + rest.size] = rest + words * lanes
        count += rest.size
    if count == 0:
        return None
    if count > room:
        return Whole(target)
    found = positions[:count].copy()
    return Sparse(found, elements(target, width)[found])


def apply_change(change: Change, content: Bytes, *, width: int) -> None:
    if isinstance(change, Whole):
        content[:] = change.content
    else:
        elements(content, width)[change.positions] = change.values


@kernel
def _scan(
    old: npt.NDArray[np.uint64], new: npt.NDArray[np.uint64], positions: Positions, room: int, lanes: int, bits: int
) -> Integer:
    """Positions of differing elements, of which a word has `lanes`, the first one lowest: all hosts are little-endian.

    Stops when there are more than `room`: the caller then wants none of them.
    """
    count: Integer = 0
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    for word in range(old.size):
        different = old[word] ^ new[word]
        if different != 0:
            # Written always and kept only if it differs: a branch here would be mispredicted most of the time.
            for lane in range(lanes):
                positions[count] = word * lanes + lane
                count += np.int64((different >> np.uint64(lane * bits)) & mask != 0)
            if count > room:
                return count
    return count
