"""The second half of a commit, and how a copy that a dead process left is brought to one version or given up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog

from trimtab.weights.apply.copy_files import CopyPlaces
from trimtab.weights.apply.durable import remove
from trimtab.weights.apply.errors import DamagedCopy, DamagedJournal, InvalidUpdate
from trimtab.weights.apply.held import CopyState, Held, read_state, write_state
from trimtab.weights.apply.journal import PIECE_ELEMENTS, Base, Journal, Record
from trimtab.weights.apply.mapping import MappedWeights

_log = structlog.get_logger(__name__)


def redo(
    places: CopyPlaces,
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
    weights.flush()
    write_state(places, CopyState(layout_digest=weights.layout.digest, held=journal.header.target))
    remove(places.committed)


def recover(places: CopyPlaces, *, piece_elements: int = PIECE_ELEMENTS) -> tuple[MappedWeights, Held] | None:
    """None when there is no copy. Raises DamagedCopy and DamagedJournal for one that is lost.

    It does not read the weights: `HostCopy.verify` does.
    """
    places.drop_unfinished()
    state = read_state(places)
    if state is None:
        return None
    try:
        weights = MappedWeights(places.model)
    except FileNotFoundError:
        raise DamagedCopy(f"{places.model} is missing") from None
    try:
        _check(places, weights, state)
        held = _finish_commit(places, weights, state.held, piece_elements=piece_elements)
    except BaseException:
        weights.close()
        raise
    return weights, held


def _check(places: CopyPlaces, weights: MappedWeights, state: CopyState) -> None:
    if state.layout_digest != weights.layout.digest:
        raise DamagedCopy(f"{places.model} has another layout than {places.state} says")
    try:
        state.held.check(weights.layout)
    except InvalidUpdate as error:
        raise DamagedCopy(f"{places.state}: {error}") from None


def _finish_commit(places: CopyPlaces, weights: MappedWeights, held: Held, *, piece_elements: int) -> Held:
    try:
        journal = Journal.open(places.committed, weights.layout)
    except FileNotFoundError:
        return held
    target = journal.header.target
    try:
        if target == held:
            remove(places.committed)
        elif journal.header.base == Base.of(held):
            redo(places, weights, journal, piece_elements=piece_elements)
            _log.info("host_copy_commit_finished", folder=str(places.folder), held=str(target))
        else:
            # Whether a part of it has been applied is unknown, so the copy cannot be trusted either.
            raise DamagedJournal(f"{places.committed} does not change {held}, which {places.model} holds")
    finally:
        journal.close()
    return target
