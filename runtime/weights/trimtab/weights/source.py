"""Where a publisher reads weights from: anything that can fill a block, so that no second copy of a model is needed."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Protocol

import numpy as np

from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout


class WeightSource(Protocol):
    """A state in the representation that engines load: their tensor names, their dtype, byte for byte."""

    @property
    def layout(self) -> StateLayout: ...

    def read(self, block: Block, out: Bytes) -> None:
        """Fill `out`, which has the block's size. Several threads call it at once, for different blocks."""


class SafetensorsFile:
    """A safetensors file as a source."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.layout = StateLayout.read(file)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = np.frombuffer(mapped, dtype=np.uint8, offset=len(self.layout.prefix))

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self._data[block.start : block.end])
