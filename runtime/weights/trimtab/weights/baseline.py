"""The state that was published last, which the next one is compared with. It moves on only when a version is committed.

A trainer waits while it is compared, which takes a few times as long as a snapshot would; in return nothing but the
changes is kept until the commit, where a snapshot is a second model.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from trimtab.weights.codec.change import SPARSE_SHARE, Bytes, Change, Sparse, Whole, apply_change, find_change
from trimtab.weights.digests import block_digest, root_digest
from trimtab.weights.layout import Block, StateLayout, Tensor

Result = TypeVar("Result")


class WeightSource(Protocol):
    """A state in the representation that engines load: their tensor names, their dtype, byte for byte."""

    @property
    def layout(self) -> StateLayout: ...

    def read(self, block: Block, out: Bytes) -> None:
        """Fill `out`, which has the block's size. Several threads call it at once, for different blocks."""


@runtime_checkable
class WeightShare(Protocol):
    """The blocks that one of several ranks owns of such a state: a copy that stays as it is while training goes on."""

    @property
    def layout(self) -> StateLayout: ...

    @property
    def own(self) -> Sequence[Block]:
        """In their order, and the same every time."""

    def read(self, block: Block, out: Bytes) -> None: ...


@runtime_checkable
class WeightChanges(Protocol):
    """What a source has found changed by itself, since its weights were captured last."""

    @property
    def layout(self) -> StateLayout: ...

    def by_block(self) -> Mapping[int, Sparse]: ...


class SafetensorsFile:
    """A safetensors file as a source."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.layout = StateLayout.read(file)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = np.frombuffer(mapped, dtype=np.uint8, offset=len(self.layout.prefix))

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self._data[block.start : block.end])

    def bytes_of(self, tensor: Tensor) -> Bytes:
        return self._data[tensor.start : tensor.end]


class LayoutChanged(ValueError):
    """The weights have other tensors than those published before: a new model needs a new trainer."""


@dataclass(frozen=True)
class Captured:
    """What changed since the baseline, block by block; nothing when there was no baseline to compare with."""

    changes: Mapping[int, Change]


class Baseline:
    """One per publisher, of all blocks or of those it owns. `capture` and `advance` are not to be called at the same
    time.
    """

    def __init__(
        self, layout: StateLayout, folder: Path, executor: Executor, *, own: Sequence[Block] | None = None
    ) -> None:
        self.layout = layout
        self.own = tuple(layout.blocks if own is None else own)
        self._folder = folder
        self._executor = executor
        self._starts = dict(zip((block.index for block in self.own), _offsets(self.own), strict=False))
        self._data = np.empty(sum(block.size for block in self.own), dtype=np.uint8)
        self._buffers = threading.local()
        self.digests: list[bytes] = []
        """Of all blocks, whoever owns them."""

    @property
    def root(self) -> str:
        return root_digest(self.layout, self.digests)

    def block(self, block: Block) -> Bytes:
        start = self._starts[block.index]
        return self._data[start : start + block.size]

    def fill(self, source: WeightSource) -> None:
        """Take a state as it is; the digests follow with `hash_all`."""
        self._each(lambda block: source.read(block, self.block(block)))

    def hash_all(self) -> None:
        """Where all blocks are its own."""
        self.know(self.hash_own())

    def hash_own(self) -> dict[int, bytes]:
        digests = self._each(lambda block: block_digest(self.block(block)))
        return {block.index: digest for block, digest in zip(self.own, digests, strict=True)}

    def know(self, *digests: Mapping[int, bytes]) -> None:
        """Of the state as it is, from all who own blocks of it."""
        known = {index: digest for part in digests for index, digest in part.items()}
        self.digests = [known[block.index] for block in self.layout.blocks]

    def capture(self, source: WeightSource) -> Captured:
        """The differences, found block by block with one block of memory per thread."""
        self._check(source.layout)

        def compare(block: Block) -> Change | None:
            fresh = self._scratch(block.size)
            source.read(block, fresh)
            change = find_change(self.block(block), fresh, width=block.element.width)
            return Whole(self._on_disk(fresh)) if isinstance(change, Whole) else change

        found = zip(self.own, self._each(compare), strict=True)
        return Captured({block.index: change for block, change in found if change is not None})

    def take(self, found: WeightChanges) -> Captured:
        """Differences that are known. A block of which much has changed is taken whole here too."""
        self._check(found.layout)

        def kept(item: tuple[int, Sparse]) -> tuple[int, Change]:
            index, change = item
            block = self.layout.blocks[index]
            if change.positions.size <= block.size // block.element.width * SPARSE_SHARE:
                return index, change
            return index, Whole(self._on_disk(self._changed(block, change)))

        return Captured(dict(self._executor.map(kept, found.by_block().items())))

    def digest_after(self, block: Block, change: Change) -> bytes:
        """The digest that the block will have."""
        if isinstance(change, Whole):
            return block_digest(change.content)
        return block_digest(self._changed(block, change))

    def advance(self, captured: Captured, digests: Sequence[bytes]) -> None:
        def move(item: tuple[int, Change]) -> None:
            index, change = item
            block = self.layout.blocks[index]
            apply_change(change, self.block(block), width=block.element.width)

        list(self._executor.map(move, captured.changes.items()))
        self.digests = list(digests)

    def _check(self, layout: StateLayout) -> None:
        if layout.digest != self.layout.digest:
            raise LayoutChanged("tensors, shapes or dtypes differ from those of the version published before")

    def _changed(self, block: Block, change: Change) -> Bytes:
        """The block as it will be, in this thread's buffer."""
        content = self._scratch(block.size)
        content[:] = self.block(block)
        apply_change(change, content, width=block.element.width)
        return content

    def _scratch(self, size: int) -> Bytes:
        """A buffer of this thread's. Allocating one for every block would leave the allocator with many."""
        buffer: Bytes | None = getattr(self._buffers, "buffer", None)
        if buffer is None or buffer.size < size:
            buffer = self._buffers.buffer = np.empty(size, dtype=np.uint8)
        return buffer[:size]

    def _on_disk(self, content: Bytes) -> Bytes:
        """A block that changed altogether waits in a file: many of them would be a second model in memory."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            kept = np.memmap(file, dtype=np.uint8, mode="w+", shape=content.shape)
            kept[:] = content
            return np.asarray(kept)

    def _each(self, work: Callable[[Block], Result]) -> list[Result]:
        return list(self._executor.map(work, self.own))


def _offsets(blocks: Sequence[Block]) -> Iterator[int]:
    """Where each lies when they lie one behind the other."""
    return accumulate((block.size for block in blocks), initial=0)
