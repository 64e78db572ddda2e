"""An earlier state, kept on disk, that a folded delta begins at: one hop for whoever was away for many versions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec, encode_change
from trimtab.weights.codec.change import apply_change, find_change
from trimtab.weights.digests import root_digest
from trimtab.weights.encoding import EncodedBlock
from trimtab.weights.layout import Block
from trimtab.weights.store.position import Position


class FoldBase:
    """A file without a name: nothing of it is left behind. It takes disk, and page cache that the kernel can drop."""

    def __init__(self, baseline: Baseline, position: Position, folder: Path) -> None:
        self._layout = baseline.layout
        with tempfile.TemporaryFile(dir=folder) as file:
            self._data = np.memmap(file, dtype=np.uint8, mode="w+", shape=(max(1, baseline.layout.data_bytes),))
        for block in baseline.layout.blocks:
            self._data[block.start : block.end] = baseline.block(block)
        self.moved_to(baseline, position)

    @property
    def root(self) -> str:
        return root_digest(self._layout, self.digests)

    def moved_to(self, baseline: Baseline, position: Position) -> None:
        self.position = position
        self.digests = list(baseline.digests)

    def encoded_fold(self, baseline: Baseline, block: Block, codec: Codec) -> EncodedBlock:
        """From here to the baseline; afterwards the block here is the baseline's."""
        here = np.asarray(self._data[block.start : block.end])
        change = find_change(here, baseline.block(block), width=block.element.width)
        assert change is not None, "blocks with different digests differ"
        encoded = encode_change(here, change, block.element, codec=codec)
        apply_change(change, here, width=block.element.width)
        return EncodedBlock(block.index, encoded, self.digests[block.index], baseline.digests[block.index])
