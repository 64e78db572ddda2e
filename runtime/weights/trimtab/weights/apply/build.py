"""The first fill of a host copy. Its file has another name and no state until it is complete, so it cannot be taken for
one.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from trimtab.weights.apply.copy_files import CopyFiles, DamagedCopy, Held, InvalidUpdate, write_state
from trimtab.weights.apply.durable import SharedFile, remove, rename
from trimtab.weights.apply.mapping import MappedWeights
from trimtab.weights.digests import block_digest
from trimtab.weights.layout import StateLayout

if TYPE_CHECKING:
    from trimtab.weights.apply.host_copy import HostCopy


class CopyBuilder:
    """Takes every block once, from any thread; as a context manager it gives up unless it was finished."""

    def __init__(self, files: CopyFiles, layout: StateLayout, *, copy: type[HostCopy]) -> None:
        self._files = files
        self._layout = layout
        self._copy = copy
        self._lock = threading.Lock()
        self._claimed: set[int] = set()
        self._digests: dict[int, bytes] = {}
        self._over = False
        with files.lock() as locks:
            files.discard()  # there is no memory for two
            self._file = SharedFile(files.building, size=len(layout.prefix) + layout.data_bytes)
            self._file.write(layout.prefix, offset=0)
            self._locks = locks.pop_all()

    def put(self, block: int, content: npt.NDArray[np.uint8]) -> None:
        part = self._layout.blocks[block]
        if content.dtype != np.uint8 or content.shape != (part.size,):
            raise InvalidUpdate(f"block {block} is {part.size} bytes, not {content.dtype} of shape {content.shape}")
        with self._lock:
            if block in self._claimed:
                raise InvalidUpdate(f"block {block} was put before; a copy takes each block once")
            self._claimed.add(block)
        content = np.ascontiguousarray(content)
        self._file.write(content.data, offset=len(self._layout.prefix) + part.start)
        digest = block_digest(content)
        with self._lock:
            self._digests[block] = digest

    def finish(self, held: Held) -> HostCopy:
        """Raises InvalidUpdate when blocks are missing, DamagedCopy when they are not those of `held`."""
        held.check(self._layout)
        with self._lock:
            digests = dict(self._digests)
        if missing := [block.index for block in self._layout.blocks if block.index not in digests]:
            raise InvalidUpdate(f"the blocks {missing} are missing; put them before finishing")
        if wrong := [index for index, digest in enumerate(held.digests) if digests[index] != digest]:
            raise DamagedCopy(f"the blocks {wrong} are not those of {held}; fetch them again")
        rename(self._files.building, self._files.model)
        write_state(self._files, layout_digest=self._layout.digest, held=held, sync=self._file.sync)
        self._file.close()
        weights = MappedWeights(self._files.model)
        self._over = True
        return self._copy(self._files, weights, held, self._locks)

    def abandon(self) -> None:
        """Does nothing after `finish`."""
        if self._over:
            return
        self._over = True
        self._file.close()
        with self._locks:
            remove(self._files.building)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()
