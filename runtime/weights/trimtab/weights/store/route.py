"""The cheapest way from the weights a pool holds to the newest ones, over single deltas, folded deltas and anchors.

Versions of a dead lineage, published by a trainer whose successor went on from an older checkpoint, are positions from
which nothing leads to the newest. A pool that holds one begins with an anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position

HOP_BYTES = 64 << 10
"""What a hop costs besides its bytes: its manifest and chunks take a round trip each."""


class NoRoute(RuntimeError):
    """Nothing in the catalogue leads to the newest weights."""


class BudgetExceeded(RuntimeError):
    """Even the cheapest route takes more bytes than allowed."""

    def __init__(self, message: str, *, needed: int, budget: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.budget = budget


@dataclass(frozen=True)
class Route:
    """Entries to apply in this order. None at all when the newest weights are held already."""

    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


def cheapest_route(latest: Latest, held: Position | None, *, max_bytes: int | None = None) -> Route:
    """From `held` or from nothing, whichever is cheaper. Raises NoRoute and BudgetExceeded."""
    if latest.newest is None:
        raise NoRoute("no weights have been published yet")
    costs: dict[Position | None, int] = {None: 0, held: 0}
    last: dict[Position, Entry] = {}
    # Every entry leads to a later position, so in this order the cost of its base is final.
    for entry in sorted(latest.catalogue, key=lambda entry: entry.target):
        if entry.target == held or entry.base not in costs:
            continue
        cost = costs[entry.base] + entry.bytes + HOP_BYTES
        if entry.target not in costs or cost < costs[entry.target]:
            costs[entry.target] = cost
            last[entry.target] = entry
    if latest.newest not in costs:
        raise NoRoute(_missing(latest, held))
    entries: list[Entry] = []
    at: Position | None = latest.newest
    while at is not None and at != held:
        entries.append(last[at])
        at = last[at].base
    route = Route(tuple(reversed(entries)))
    if max_bytes is not None and route.bytes > max_bytes:
        raise BudgetExceeded(
            f"the cheapest route to {latest.newest} takes {route.bytes} bytes, more than the {max_bytes} allowed",
            needed=route.bytes,
            budget=max_bytes,
        )
    return route


def as_of(latest: Latest, target: Position) -> Latest:
    """As if nothing had been published after `target`, which is in the catalogue."""
    catalogue = tuple(entry for entry in latest.catalogue if entry.target <= target)
    return msgspec.structs.replace(latest, catalogue=catalogue, newest=target)


def joinable(latest: Latest) -> set[Position]:
    """The positions that a pool with nothing can get to. Some of the catalogue may have lost their anchor."""
    found: set[Position] = set()
    for entry in sorted(latest.catalogue, key=lambda entry: entry.target):
        if entry.base is None or entry.base in found:
            found.add(entry.target)
    return found


def _missing(latest: Latest, held: Position | None) -> str:
    anchors = [str(entry.target) for entry in latest.catalogue if entry.base is None]
    lacking = f"no deltas lead there from the anchors of {', '.join(anchors)}" if anchors else "there is no anchor"
    start = "" if held is None else f"none from {held}, which is held, and "
    return f"there is no route to {latest.newest}: {start}{lacking}; publish an anchor"
