"""Differences between weights as small numbers: how many representable values lie between old and new.

Bit patterns are mapped to integers that grow with the value, a bijection of all patterns, so that NaN payloads, both
zeros and infinities come back exactly. A float that moves to its neighbour has difference one, whatever its size.
"""

from __future__ import annotations

import numpy as np

from trimtab.weights.codec.kernels import Integer, inlined


@inlined
def difference(old: Integer, new: Integer, bits: int, sign_magnitude: bool) -> np.uint64:
    """Zigzag of the distance from old to new: 0 none, 1 one down, 2 one up, 3 two down, …"""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    sign = np.uint64(1) << np.uint64(bits - 1)
    low, high = np.uint64(old), np.uint64(new)
    if sign_magnitude:
        low = (~low & mask) if low & sign else (low | sign)
        high = (~high & mask) if high & sign else (high | sign)
    distance = (high - low) & mask
    return ((distance << np.uint64(1)) ^ (np.uint64(0) - (distance >> np.uint64(bits - 1)))) & mask


@inlined
def moved(old: Integer, zigzag: Integer, bits: int, sign_magnitude: bool) -> np.uint64:
    """The inverse: the new bit pattern."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    sign = np.uint64(1) << np.uint64(bits - 1)
    low, code = np.uint64(old), np.uint64(zigzag)
    if sign_magnitude:
        low = (~low & mask) if low & sign else (low | sign)
    high = (low + ((code >> np.uint64(1)) ^ (np.uint64(0) - (code & np.uint64(1))))) & mask
    if sign_magnitude:
        high = (high ^ sign) if high & sign else (~high & mask)
    return high
