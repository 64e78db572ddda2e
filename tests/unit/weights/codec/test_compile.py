"""What a pod has compiled while it waited for its model is not compiled again when its first version comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE_A_VERSION = """
import threading
import numpy as np
from trimtab.weights.codec.blocks import Codec, decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import find_change
from trimtab.weights.codec.compile import compile_beside
from trimtab.weights.layout import ELEMENT_TYPES

compile_beside(["bfloat16"])
for thread in threading.enumerate():
    if thread.name == "kernels":
        thread.join()
import numba.core.dispatcher

def compiles(self, *arguments, **options):
    raise AssertionError("a kernel is compiled in use")

numba.core.dispatcher.Dispatcher.compile = compiles
element = ELEMENT_TYPES["BF16"]
base = np.arange(80_000, dtype=np.uint8)
target = base.copy()
target[::40] ^= 1
change = find_change(base, target, width=element.width)
for codec in Codec:
    encoded = encode_change(base, change, element, codec=codec)
    out = np.empty_like(base)
    decode_block(encoded.mode, base, encoded.payload, element, out)
    assert np.array_equal(out, target)
encoded = encode_whole(target, element)
decode_block(encoded.mode, None, encoded.payload, element, out)
"""


@pytest.mark.slow
def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", _CODE_A_VERSION], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
