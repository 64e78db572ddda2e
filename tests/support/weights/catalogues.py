"""Random catalogues of published versions, and every route through one."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.weights.sealed_samples import catalogue, entry
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import HOP_BYTES

POSITIONS = [Position(epoch, version) for epoch in (1, 2) for version in range(1, 5)]


def all_routes(latest: Latest, start: Position | None) -> list[tuple[Entry, ...]]:
    """Every way from here to the newest, by trying everything."""
    if start == latest.newest:
        return [()]
    onward = [entry for entry in latest.catalogue if entry.base == start]
    return [(entry, *rest) for entry in onward for rest in all_routes(latest, entry.target)]


edges = st.tuples(st.sampled_from(POSITIONS), st.none() | st.sampled_from(POSITIONS), st.integers(0, 40 * HOP_BYTES))


catalogues = st.lists(edges, min_size=1, max_size=14).map(
    lambda drawn: catalogue(
        {
            (target, base): entry(target, base, size=size) for target, base, size in drawn if not base or base < target
        }.values()
    )
)
