"""Which entries of a catalogue are worth keeping: those that members need, that joiners need, and the newest."""

from __future__ import annotations

from collections.abc import Collection

from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import NoRoute, cheapest_route


def retained(latest: Latest, held: Collection[Position], *, keep_versions: int) -> tuple[Entry, ...]:
    """In the order of the catalogue. What does not lead to the newest weights is never among them."""
    if keep_versions < 1:
        raise ValueError(f"keep_versions is {keep_versions}; at least the newest version must be kept")
    lineage = _lineage(latest)
    newest = set(sorted(lineage, reverse=True)[:keep_versions])
    needed = {entry for start in (None, *held) for entry in _route(latest, start)}
    return tuple(entry for entry in latest.catalogue if entry.target in newest or entry in needed)


def _lineage(latest: Latest) -> set[Position]:
    """The positions with an entry of their own from which the newest can be reached, and the newest."""
    reaching = {latest.newest} if latest.newest is not None else set()
    for entry in sorted(latest.catalogue, key=lambda entry: entry.target, reverse=True):
        if entry.target in reaching and entry.base is not None:
            reaching.add(entry.base)
    return reaching & {entry.target for entry in latest.catalogue}


def _route(latest: Latest, start: Position | None) -> tuple[Entry, ...]:
    try:
        return cheapest_route(latest, start).entries
    except NoRoute:
        return ()
