"""Compiles every kernel before it is needed and keeps the result on disk: otherwise each of the processes that start
together on a fresh machine does it for itself, for seconds each. `python -m trimtab.weights.codec.compile`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trimtab.weights.codec.blocks import Codec, decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import Whole, find_change
from trimtab.weights.layout import ELEMENT_TYPES, ElementType

_ELEMENTS = 40_000
"""So many that one change in ten is enough for the tables of compact mode."""


def compile_kernels(types: Iterable[ElementType]) -> None:
    """By coding a block of each type in each mode."""
    random = np.random.default_rng(0)
    for element in types:
        base = random.integers(0, 256, _ELEMENTS * element.width, dtype=np.uint8)
        target = base.copy()
        target[:: 10 * element.width] ^= 1
        change = find_change(base, target, width=element.width)
        assert change is not None
        for asked in (change, Whole(target)):
            for codec in Codec:
                encoded = encode_change(base, asked, element, codec=codec)
                decode_block(encoded.mode, base, encoded.payload, element, np.empty_like(base))
        encoded = encode_whole(target, element)
        decode_block(encoded.mode, None, encoded.payload, element, np.empty_like(base))


if __name__ == "__main__":
    compile_kernels(ELEMENT_TYPES.values())
