"""Where a publisher reads weights from: anything that can fill a block, so that no second copy of a model is needed."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Protocol

import numpy as np

from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, InvalidLayout, StateLayout

_LENGTH_BYTES = 8


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
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size = path.stat().st_size
            if _LENGTH_BYTES + length > size:
                raise InvalidLayout(f"{path.name} is no safetensors file: its header would be longer than the file")
            self.layout = StateLayout.parse(file.read(length))
            if size != len(self.layout.prefix) + self.layout.data_bytes:
                raise InvalidLayout(f"{path.name} has {size} bytes, its header describes {self.layout.data_bytes}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = np.frombuffer(mapped, dtype=np.uint8, offset=len(self.layout.prefix))

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self._data[block.start : block.end])
