"""Carries the changed elements of an update to the built-in engine: a file beside it, written while it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import structlog

from trimtab.rollout.engines.builtin.sparse_update import WeightMismatchError, write_sparse_update
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import ServerInfo, WeightUpdate
from trimtab.weights.apply.changes import sparse_changes
from trimtab.weights.apply.transaction import PreparedUpdate

_log = structlog.get_logger(__name__)
_INDEX_BYTES = 8
# Of the size of the checkpoint. Scattered writes are dearer than reading the file from end to end.
_MOST = 0.5


class SparseCarrier(Protocol):
    """How one kind of engine takes sparse updates."""

    def suits(self, info: ServerInfo) -> bool:
        """Whether the engine was launched for them."""

    def pack(self, update: PreparedUpdate, *, base_label: str) -> bool:
        """Get everything ready; it may take a while. False if the whole weights are the better way."""

    async def give(
        self, engine: EngineClient, *, launched: ServerInfo, weight_version: str, timeout_s: float
    ) -> WeightUpdate:
        """What was packed last. EngineRefused from an engine that does not serve the base of it, EngineNotFound from
        one that cannot take any.
        """


class SparseFile:
    """One file in scratch, written anew for each update. It names the weights that it changes, and an engine with
    others refuses it: so a file that is left over from a crash does no harm.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def suits(self, info: ServerInfo) -> bool:
        return True

    def pack(self, update: PreparedUpdate, *, base_label: str) -> bool:
        journal = update.journal
        blocks = journal.layout.blocks
        size = sum(record.count * (_INDEX_BYTES + blocks[record.block].element.width) for record in journal.records)
        if size > _MOST * journal.layout.data_bytes:
            return False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Beside it first: an engine that is still at the file before keeps reading that.
            fresh = self.path.with_suffix(".writing")
            write_sparse_update(fresh, sparse_changes(update), base_version=base_label)
            fresh.replace(self.path)
        except (OSError, WeightMismatchError) as error:
            _log.warning("sparse_update_not_written", reason=str(error))
            return False
        return True

    async def give(
        self, engine: EngineClient, *, launched: ServerInfo, weight_version: str, timeout_s: float
    ) -> WeightUpdate:
        return await engine.update_weights_from_sparse_file(
            self.path, weight_version=weight_version, timeout_s=timeout_s
        )
