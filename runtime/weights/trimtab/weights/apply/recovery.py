"""The second half of a commit, and how a copy that a dead process left is brought to one version or given up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog

from trimtab.weights.apply.copy_files import (
    CopyFiles,
    CopyState,
    DamagedCopy,
    DamagedJournal,
    Held,
    InvalidUpdate,
    boot_id,
    read_state,
    write_state,
)
from trimtab.weights.apply.durable import remove
from trimtab.weights.apply.journal import PIECE_ELEMENTS, Base, Journal, Record
from trimtab.weights.apply.mapping import MappedWeights

_log = structlog.get_logger(__name__)


def redo(
    files: CopyFiles,
    weights: MappedWeights,
    journal: Journal,
    *,
    threads: int = 1,
    piece_elements: int = PIECE_ELEMENTS,
) -> None:
    """Makes the copy what a committed journal says, however much of it has happened before."""

    def apply(record: Record) -> None:
        elements = weights.elements(weights.layout.blocks[record.block])
        journal.apply(record, elements, piece_elements=piece_elements)

    with ThreadPoolExecutor(threads, thread_name_prefix="apply") as pool:
        for _ in pool.map(apply, journal.records):
            pass
    write_state(files, layout_digest=weights.layout.digest, held=journal.header.target, sync=weights.flush)
    remove(files.committed)


def recover(files: CopyFiles, *, piece_elements: int = PIECE_ELEMENTS) -> tuple[MappedWeights, Held] | None:
    """None when there is no copy. Raises DamagedCopy and DamagedJournal for one that is lost.

    It does not read the weights: `HostCopy.verify` does.
    """
    files.drop_unfinished()
    state = read_state(files)
    if state is None:
        return None
    try:
        weights = MappedWeights(files.model)
    except FileNotFoundError:
        raise DamagedCopy(f"{files.model} is missing") from None
    try:
        _check(files, weights, state)
        held = _finish_commit(files, weights, state.held, piece_elements=piece_elements)
    except BaseException:
        weights.close()
        raise
    return weights, held


def _check(files: CopyFiles, weights: MappedWeights, state: CopyState) -> None:
    if state.boot is not None and state.boot != boot_id():
        raise DamagedCopy(f"{files.model} was written before the machine was started again; parts may be missing")
    if state.layout_digest != weights.layout.digest:
        raise DamagedCopy(f"{files.model} has another layout than {files.state} says")
    try:
        state.held.check(weights.layout)
    except InvalidUpdate as error:
        raise DamagedCopy(f"{files.state}: {error}") from None


def _finish_commit(files: CopyFiles, weights: MappedWeights, held: Held, *, piece_elements: int) -> Held:
    try:
        journal = Journal.open(files.committed, weights.layout)
    except FileNotFoundError:
        return held
    target = journal.header.target
    try:
        if target == held:
            remove(files.committed)
        elif journal.header.base == Base.of(held):
            redo(files, weights, journal, piece_elements=piece_elements)
            _log.info("host_copy_commit_finished", folder=str(files.folder), held=str(target))
        else:
            # Whether a part of it has been applied is unknown, so the copy cannot be trusted either.
            raise DamagedJournal(f"{files.committed} does not change {held}, which {files.model} holds")
    finally:
        journal.close()
    return target
