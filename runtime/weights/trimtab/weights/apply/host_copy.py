"""The host copy of a model's weights: what a pool decodes against, verifies, and loads its engines from.

It is a mapped file with room for one version. A version replaces another in place, by a redo journal: killed at any
instruction, the copy is bit for bit the old or the new one after the next `open`. A machine that was started again has
no copy.

Readers of the file see a commit as it happens. The owner tells engines to load only between commits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog

from trimtab.weights.apply.build import CopyBuilder
from trimtab.weights.apply.copy_files import CopyFiles, DamagedCopy, DamagedJournal, Held, InvalidUpdate
from trimtab.weights.apply.journal import PIECE_ELEMENTS, Base, Journal, JournalHeader, JournalWriter
from trimtab.weights.apply.mapping import MappedWeights
from trimtab.weights.apply.recovery import recover, redo
from trimtab.weights.apply.transaction import Transaction
from trimtab.weights.digests import block_digest
from trimtab.weights.layout import Block, StateLayout, Tensor

_log = structlog.get_logger(__name__)


class HostCopy:
    """Made by `open` or by a build. It has one owner, in one process, until `close`."""

    def __init__(
        self,
        files: CopyFiles,
        weights: MappedWeights,
        held: Held,
        locks: ExitStack,
        *,
        piece_elements: int = PIECE_ELEMENTS,
    ) -> None:
        self.files = files
        self._weights = weights
        self._held = held
        self._locks = locks
        self._piece_elements = piece_elements

    @classmethod
    def open(cls, folder: Path, spool: Path, *, piece_elements: int = PIECE_ELEMENTS) -> HostCopy | None:
        """The copy that was left here, after finishing a commit that was interrupted; None when there is none.

        One that cannot be used is removed, and None is returned: it is to be built from the store. Raises CopyInUse.
        Commits change `piece_elements` at a time.
        """
        files = CopyFiles(folder, spool)
        with files.lock() as locks:
            try:
                recovered = recover(files, piece_elements=piece_elements)
            except (DamagedCopy, DamagedJournal) as error:
                _log.warning("host_copy_discarded", folder=str(folder), error=str(error))
                recovered = None
            if recovered is None:
                files.discard()
                return None
            return cls(files, *recovered, locks.pop_all(), piece_elements=piece_elements)

    @classmethod
    def build(cls, folder: Path, spool: Path, layout: StateLayout) -> CopyBuilder:
        """Begins the first fill. A copy that is there already is gone from now on. Raises CopyInUse."""
        return CopyBuilder(CopyFiles(folder, spool), layout, copy=cls)

    @property
    def held(self) -> Held:
        return self._held

    @property
    def layout(self) -> StateLayout:
        return self._weights.layout

    @property
    def path(self) -> Path:
        return self.files.model

    @property
    def closed(self) -> bool:
        return self._weights.closed

    def block(self, index: int) -> npt.NDArray[np.uint8]:
        """A read-only view, aligned for the block's element width. It shows later versions as they are committed."""
        return self._weights.view(self.layout.blocks[index])

    def tensor(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """A read-only view, as `block` gives."""
        return self._weights.view(tensor)

    def verify(self, *, threads: int = 1) -> None:
        """Reads all of it. Raises DamagedCopy with the names of the tensors that are not what `held` says."""

        def damaged(block: Block) -> bool:
            return block_digest(self._weights.view(block)) != self._held.digests[block.index]

        blocks = self.layout.blocks
        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            wrong = [block for block, bad in zip(blocks, pool.map(damaged, blocks), strict=True) if bad]
        if wrong:
            names = [
                tensor.name
                for tensor in self.layout.tensors
                if any(block.start < tensor.end and tensor.start < block.end for block in wrong)
            ]
            raise DamagedCopy(f"{self.path} is not {self._held}: {', '.join(names)} differ; build it again")

    def begin(self, target: Held) -> Transaction:
        """An update of what is held now to `target`. There is one at a time, until it is committed or given up."""
        if self.closed:
            raise InvalidUpdate(f"{self.path} is closed; open it before updating it")
        target.check(self.layout)
        header = JournalHeader(layout_digest=self.layout.digest, base=Base.of(self._held), target=target)
        if any(path.exists() for path in (self.files.writing, self.files.prepared, self.files.committed)):
            raise InvalidUpdate(f"another update of {self.path} is under way; commit it or give it up first")
        return Transaction(self, JournalWriter(self.files.writing, header, self.layout), target)

    def finish_commit(self, journal: Journal, *, threads: int) -> None:
        """For PreparedUpdate, which has made the journal the committed one."""
        redo(self.files, self._weights, journal, threads=threads, piece_elements=self._piece_elements)
        self._held = journal.header.target

    def close(self) -> None:
        """Gives the copy up to the next `open`. An update that is not committed is lost."""
        self._weights.close()
        self._locks.close()
