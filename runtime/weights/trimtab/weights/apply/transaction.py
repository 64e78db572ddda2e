"""An update of a host copy: written to its journal while engines serve, then committed by one rename.

Blocks are put as the decoder has verified them: a block and its changes give the target's digest. What is checked here
is that the changes fit the layout, and that every block that differs in the target has been put.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from trimtab.fabric.durable_files import sync_folder
from trimtab.weights.apply.copy_files import Held, InvalidUpdate
from trimtab.weights.apply.durable import remove, rename
from trimtab.weights.apply.journal import Journal, JournalWriter, Kind
from trimtab.weights.layout import Block

if TYPE_CHECKING:
    from trimtab.weights.apply.host_copy import HostCopy


class Transaction:
    """Made by `HostCopy.begin`. Blocks are put once each, from any thread, in any order.

    As a context manager it gives up unless it was prepared.
    """

    def __init__(self, copy: HostCopy, writer: JournalWriter, target: Held) -> None:
        self._copy = copy
        self._writer = writer
        self._target = target
        self._over = False

    def put_sparse(
        self, block: int, positions: npt.NDArray[np.uint32], values: npt.NDArray[np.unsignedinteger[Any]]
    ) -> None:
        """`positions` are of elements inside the block, increasing; `values` are as wide as its elements."""
        part = self._block(block)
        width = part.element.width
        if positions.dtype != np.uint32 or values.dtype != np.dtype(f"u{width}"):
            raise InvalidUpdate(
                f"block {block} takes uint32 and uint{8 * width}, not {positions.dtype}, {values.dtype}"
            )
        if positions.ndim != 1 or positions.shape != values.shape:
            raise InvalidUpdate(f"block {block}: positions of {positions.shape}, values of {values.shape}")
        positions, values = np.ascontiguousarray(positions), np.ascontiguousarray(values)
        if not np.all(positions[1:] > positions[:-1]):
            raise InvalidUpdate(f"block {block}: its positions do not increase; sort them, each once")
        elements = part.size // width
        if len(positions) and positions[-1] >= elements:
            raise InvalidUpdate(f"block {block} has {elements} elements, position {positions[-1]} is outside")
        self._writer.put(block, Kind.SPARSE, count=len(positions), arrays=(positions, values))

    def put_whole(self, block: int, content: npt.NDArray[np.uint8]) -> None:
        part = self._block(block)
        if content.dtype != np.uint8 or content.shape != (part.size,):
            raise InvalidUpdate(f"block {block} is {part.size} bytes, not {content.dtype} of shape {content.shape}")
        count = part.size // part.element.width
        self._writer.put(block, Kind.WHOLE, count=count, arrays=(np.ascontiguousarray(content),))

    def prepare(self) -> PreparedUpdate:
        """The journal is complete and on disk. Nothing has changed yet; a restart from here drops it."""
        if self._over or self._copy.closed:
            raise InvalidUpdate("the update is prepared or abandoned already, or its copy is closed")
        digests = enumerate(zip(self._copy.held.digests, self._target.digests, strict=True))
        journal = self._writer.seal(required={index for index, (old, new) in digests if old != new})
        rename(self._copy.files.writing, self._copy.files.prepared)
        self._over = True
        return PreparedUpdate(self._copy, journal)

    def abandon(self) -> None:
        """Does nothing after `prepare`."""
        if self._over:
            return
        self._over = True
        self._writer.close()
        if not self._copy.closed:  # what lies there now may be another owner's
            remove(self._copy.files.writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()

    def _block(self, block: int) -> Block:
        blocks = self._copy.layout.blocks
        if not 0 <= block < len(blocks):
            raise InvalidUpdate(f"there is no block {block}; the layout has {len(blocks)}")
        return blocks[block]


class PreparedUpdate:
    """Made by `Transaction.prepare`. Its changes can be read from then until `close`, before and after the commit.

    As a context manager it rolls back unless it was committed, and closes.
    """

    def __init__(self, copy: HostCopy, journal: Journal) -> None:
        self.copy = copy
        self.journal = journal
        self._past_commit_point = False
        self._over = False

    @property
    def committed(self) -> bool:
        return self._past_commit_point and self._over

    def commit(self, *, threads: int = 1) -> None:
        """When it raises, the copy may be between versions: repeat it, or close the copy and open it again."""
        if self._over or self.copy.closed:
            raise InvalidUpdate("the update is committed or rolled back already, or its copy is closed")
        if not self._past_commit_point:
            self.copy.files.prepared.replace(self.copy.files.committed)
            self._past_commit_point = True
        sync_folder(self.copy.files.spool)
        self.copy.finish_commit(self.journal, threads=threads)
        self._over = True

    def rollback(self) -> None:
        """Leaves everything as it was. InvalidUpdate once a commit has begun: that can only be finished."""
        if self._past_commit_point:
            raise InvalidUpdate("a commit that has begun cannot be rolled back; finish it")
        if self._over:
            return
        self._over = True
        if not self.copy.closed:  # what lies there now may be another owner's
            remove(self.copy.files.prepared)

    def close(self) -> None:
        """Gives up the journal, whose space on disk is taken until then."""
        self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._past_commit_point:
            self.rollback()
        self.close()
