"""Compiles the kernels before they are needed, which takes seconds on a machine that has none: a pod does it while it
waits for its model, and `python -m trimtab.weights.codec.compile` once for all processes of one machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from trimtab.weights.codec.blocks import Codec, decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import Whole, find_change
from trimtab.weights.layout import ELEMENT_TYPES, ElementType

_ELEMENTS = 40_000
"""So many that one change in ten is enough for the tables of compact mode."""


_STORED_AS = {"bfloat16": "BF16", "float32": "F32"}
"""What a manifest calls a type of weights, and a file."""


def compile_beside(dtypes: Iterable[str]) -> None:
    """For weights of these types, beside what the caller does next. It ends with the process."""
    types = [ELEMENT_TYPES[_STORED_AS[dtype]] for dtype in sorted(set(dtypes))]
    threading.Thread(target=compile_kernels, args=(types,), name="kernels", daemon=True).start()


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
