"""Digests of weights: XXH3 of every block, which is as fast as memory, and one SHA-256 root over all of them.

XXH3 detects damage. Malice is kept out by the signature of the manifest, which covers every digest through the root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from trimtab.weights.layout import StateLayout


def block_digest(content: npt.NDArray[np.generic]) -> bytes:
    return xxhash.xxh3_128_digest(content.data)


def root_digest(layout: StateLayout, blocks: Sequence[bytes]) -> str:
    """Identifies a state: two with the same root are the same, bit for bit."""
    hasher = hashlib.sha256(bytes.fromhex(layout.digest))
    for digest in blocks:
        hasher.update(digest)
    return hasher.hexdigest()
