"""Which entries of a catalogue are worth keeping: those that members need, that joiners need, the newest, and the ways
to those that are kept for what they scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import NoRoute, as_of, cheapest_route


def retained(
    latest: Latest,
    held: Collection[Position],
    *,
    keep_versions: int,
    kept: Collection[Position] = (),
    copies: int | None = None,
) -> tuple[Entry, ...]:
    """In the order of the catalogue. What does not lead to the newest weights, nor to the `kept` ones, is never among
    them. With `copies`, fewer than `keep_versions` are kept where they would take more bytes than so many whole copies.
    """
    if keep_versions < 1:
        raise ValueError(f"keep_versions is {keep_versions}; at least the newest version must be kept")
    newest = _newest(latest, sorted(_lineage(latest), reverse=True)[:keep_versions], copies=copies)
    needed = {entry for start in (None, *held) for entry in _route(latest, start)}
    there = {entry.target for entry in latest.catalogue}
    needed |= {entry for position in there.intersection(kept) for entry in _route(as_of(latest, position), None)}
    return tuple(entry for entry in latest.catalogue if entry.target in newest or entry in needed)


def _newest(latest: Latest, positions: Sequence[Position], *, copies: int | None) -> set[Position]:
    """Of these, newest first, as many as there is room for."""
    anchors = [entry.bytes for entry in latest.catalogue if entry.base is None]
    if copies is None or not anchors:
        return set(positions)
    sizes: Counter[Position] = Counter()
    for entry in latest.catalogue:
        sizes[entry.target] += entry.bytes
    left, found = copies * max(anchors), set(positions[:1])
    for position in positions:
        left -= sizes[position]
        if left < 0:
            break
        found.add(position)
    return found


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
