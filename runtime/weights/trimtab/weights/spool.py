"""What upkeep keeps on disk: the state that the next fold begins at, and encoded blocks until they are uploaded."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec, Encoded, Mode, encode_change
from trimtab.weights.codec.change import apply_change, find_change
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import Block
from trimtab.weights.store.position import Position
from trimtab.weights.version_writer import EncodedBlock


class FoldBase:
    """An earlier state, kept on disk, that a folded delta begins at: one hop for a pool that was away for many
    versions. It is a file without a name, of which nothing is left behind, in page cache that the kernel can drop.
    """

    def __init__(self, baseline: Baseline, position: Position, folder: Path) -> None:
        self._layout = baseline.layout
        with tempfile.TemporaryFile(dir=folder) as file:
            self._data = np.memmap(file, dtype=np.uint8, mode="w+", shape=(max(1, baseline.layout.data_bytes),))
        for block in baseline.own:
            self._data[block.start : block.end] = baseline.block(block)
        self.moved_to(baseline, position)

    @property
    def root(self) -> str:
        return root_digest(self._layout, self.digests)

    def stale_blocks(self, baseline: Baseline) -> list[Block]:
        """Those that are other ones by now, of the baseline's own."""
        return [block for block in baseline.own if self.digests[block.index] != baseline.digests[block.index]]

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


@dataclass(frozen=True)
class _Kept:
    block: int
    mode: Mode
    size: int
    base: bytes | None
    digest: bytes


class SpooledBlocks:
    """Encoded blocks on disk: anchors and folds are encoded at once, while the state is at hand, and uploaded when
    there is time. Written once, read once or more, gone when closed.
    """

    def __init__(self, folder: Path) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)
        self._kept: list[_Kept] = []

    def append(self, block: EncodedBlock) -> None:
        self._file.write(block.encoded.payload)
        self._kept.append(_Kept(block.block, block.encoded.mode, len(block.encoded.payload), block.base, block.digest))

    async def blocks(self) -> AsyncIterator[EncodedBlock]:
        self._file.seek(0)
        for kept in self._kept:
            payload = await asyncio.to_thread(self._file.read, kept.size)
            yield EncodedBlock(kept.block, Encoded(kept.mode, payload), kept.base, kept.digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
