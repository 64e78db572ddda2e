"""What other systems would send for the same change, written from descriptions of their formats; none of them runs.

Each is taken at its best: headers and names are left out, and where a description leaves a choice the smaller is taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import zstandard

from trimtab.weights.codec.change import Elements

ASTRAFLOW, INDEXED, XOR, GAPS, FULL = "astraflow_u64", "u32_bf16", "xor_zstd", "gaps_xor_zstd", "full"
_LEVEL = 1
_GAP_TYPES = (np.uint16, np.uint32, np.uint64)


def peer_bytes(old: Elements, new: Elements) -> dict[str, int]:
    """Bytes of each format for one tensor. AstraFlow takes 64-bit indices from 2**32 weights on, as 14.8e9 are."""
    positions = np.flatnonzero(old != new)
    return {
        ASTRAFLOW: positions.size * (8 + old.itemsize),
        INDEXED: positions.size * (4 + old.itemsize),
        XOR: len(xor_delta(old, new)),
        GAPS: len(gap_delta(old, new, positions)),
        FULL: new.nbytes,
    }


def xor_delta(old: Elements, new: Elements) -> bytes:
    """slime, miles and SkyRL: all bytes of the tensor, zero where nothing changed."""
    return _compressed(old ^ new)


def gap_delta(old: Elements, new: Elements, positions: npt.NDArray[np.int64]) -> bytes:
    """NeMo-RL: gaps less one in the narrowest type that holds the largest, and the exclusive or of old and new values.

    Together or one by one through zstd, whichever is smaller.
    """
    if positions.size == 0:
        return b""
    gaps = np.diff(positions, prepend=-1) - 1
    largest = int(gaps.max())
    narrow = gaps.astype(next(kind for kind in _GAP_TYPES if largest <= np.iinfo(kind).max))
    values = old[positions] ^ new[positions]
    together = _compressed(np.concatenate([narrow.view(np.uint8), values.view(np.uint8)]))
    return min(together, _compressed(narrow) + _compressed(values), key=len)


def _compressed(numbers: npt.NDArray[np.generic]) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(numbers.tobytes())
