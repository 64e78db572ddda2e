"""Small models of many dtypes, versions of them, and how a version becomes an update."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.weights.apply.copy_files import Held
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.journal import PIECE_ELEMENTS
from trimtab.weights.apply.transaction import PreparedUpdate, Transaction
from trimtab.weights.digests import block_digest, root_digest
from trimtab.weights.layout import Block, StateLayout

Bytes = npt.NDArray[np.uint8]

TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "scale": ("F64", (9,)),
    "rope": ("F32", (25, 5)),
    "counts": ("U32", (3,)),
    "nothing": ("BF16", (0, 4)),
    "norm.1": ("BF16", (8,)),
    "norm.2": ("BF16", (20,)),
    "up": ("BF16", (40, 10)),
    "quantised": ("I8", (7, 11)),
    "mask": ("BOOL", (5,)),
}


@dataclass(frozen=True)
class Site:
    """Where a test's copy lives."""

    folder: Path
    spool: Path
    piece_elements: int = PIECE_ELEMENTS

    def open(self) -> HostCopy | None:
        return HostCopy.open(self.folder, self.spool, piece_elements=self.piece_elements)

    def opened(self) -> HostCopy:
        copy = self.open()
        assert copy is not None
        return copy

    def build(self, layout: StateLayout, data: Bytes, *, version: int) -> HostCopy:
        with HostCopy.build(self.folder, self.spool, layout) as builder:
            for block in layout.blocks:
                builder.put(block.index, data[block.start : block.end])
            return builder.finish(held_of(layout, data, version=version))

    def leftovers(self) -> set[str]:
        return {path.name for folder in (self.folder, self.spool) for path in folder.iterdir()} - {"copy.lock"}


def held_of(layout: StateLayout, data: Bytes, *, version: int) -> Held:
    digests = tuple(block_digest(data[block.start : block.end]) for block in layout.blocks)
    return Held(epoch=1, version=version, root=root_digest(layout, digests), digests=digests)


def weights(layout: StateLayout, *, version: int, density: float = 0.2) -> Bytes:
    """Random bytes; each version changes some elements of the one before."""
    data = np.random.default_rng(0).integers(0, 256, layout.data_bytes, dtype=np.uint8)
    for step in range(1, version + 1):
        random = np.random.default_rng(step)
        for block in layout.blocks:
            elements = elements_of(data, block)
            chosen = random.random(len(elements)) < density
            elements[chosen] = random.integers(0, 1 << 8, int(chosen.sum())).astype(elements.dtype)
    return data


def elements_of(data: Bytes, block: Block) -> npt.NDArray[np.unsignedinteger]:
    return data[block.start : block.end].view(f"u{block.element.width}")


def put_changes(
    transaction: Transaction, layout: StateLayout, old: Bytes, new: Bytes, *, whole: Collection[int] = ()
) -> None:
    for block in layout.blocks:
        if block.index in whole:
            transaction.put_whole(block.index, new[block.start : block.end])
            continue
        before, after = elements_of(old, block), elements_of(new, block)
        positions = np.flatnonzero(before != after).astype(np.uint32)
        transaction.put_sparse(block.index, positions, after[positions])


def prepared(copy: HostCopy, new: Bytes, *, whole: Collection[int] = ()) -> PreparedUpdate:
    target = held_of(copy.layout, new, version=copy.held.version + 1)
    with copy.begin(target) as transaction:
        put_changes(transaction, copy.layout, content_of(copy), new, whole=whole)
        return transaction.prepare()


def content_of(copy: HostCopy) -> Bytes:
    return np.concatenate([copy.block(block.index) for block in copy.layout.blocks])
