"""Routes are the cheapest there are, and say what is missing when there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.weights.catalogues import POSITIONS, all_routes, catalogues
from tests.support.weights.sealed_samples import MIB, catalogue, entry
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import HOP_BYTES, BudgetExceeded, NoRoute, cheapest_route

V = [Position(1, version) for version in range(10)]


def cost(entries: tuple[Entry, ...]) -> int:
    return sum(entry.bytes + HOP_BYTES for entry in entries)


@given(latest=catalogues, held=st.none() | st.sampled_from(POSITIONS))
def test_no_route_is_cheaper_than_the_one_that_is_found(latest: Latest, held: Position | None) -> None:
    possible = all_routes(latest, held) + all_routes(latest, None) if latest.newest else []
    if not possible:
        with pytest.raises(NoRoute):
            cheapest_route(latest, held)
        return
    found = cheapest_route(latest, held)
    assert found.entries in possible
    assert cost(found.entries) == min(map(cost, possible))


def test_who_holds_the_newest_has_nothing_to_do() -> None:
    assert cheapest_route(catalogue([entry(V[1])]), V[1], max_bytes=0).entries == ()


def test_a_fold_pays_when_it_is_smaller_than_its_parts() -> None:
    singles = [entry(V[n], V[n - 1], size=10 * MIB) for n in range(1, 5)]
    fold = entry(V[4], V[0], size=25 * MIB)
    latest = catalogue([*singles, fold])
    assert cheapest_route(latest, V[0]).entries == (fold,)
    assert cheapest_route(latest, V[2]).entries == tuple(singles[2:])


def test_round_trips_count() -> None:
    singles = [entry(V[n], V[n - 1], size=10) for n in range(1, 5)]
    fold = entry(V[4], V[0], size=1000)
    assert cheapest_route(catalogue([*singles, fold]), V[0]).entries == (fold,)


def test_a_joiner_begins_with_an_anchor() -> None:
    anchor, step = entry(V[3], size=100 * MIB), entry(V[4], V[3])
    latest = catalogue([entry(V[1], size=100 * MIB), anchor, step])
    assert cheapest_route(latest, None).entries == (anchor, step)


def test_an_anchor_is_taken_by_a_holder_whose_deltas_cost_more() -> None:
    anchor = entry(V[2], size=5 * MIB)
    assert cheapest_route(catalogue([anchor, entry(V[2], V[1], size=9 * MIB)]), V[1]).entries == (anchor,)


def test_a_holder_of_a_dead_lineage_begins_with_an_anchor() -> None:
    """Epoch 1 published up to 4 and crashed; epoch 2 went on from the checkpoint of 2."""
    anchor = entry(V[1], size=100 * MIB)
    first = [entry(V[n], V[n - 1]) for n in range(2, 5)]
    second = [entry(Position(2, 3), V[2]), entry(Position(2, 4), Position(2, 3))]
    latest = catalogue([anchor, *first, *second])
    assert cheapest_route(latest, V[4]).entries == (anchor, first[0], *second)
    assert cheapest_route(latest, V[2]).entries == tuple(second)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(NoRoute, match="no weights have been published"):
        cheapest_route(Latest(epoch=1), None)
    with pytest.raises(NoRoute, match="to version 5 of epoch 1: there is no anchor"):
        cheapest_route(catalogue([entry(V[5], V[4])]), None)
    with pytest.raises(NoRoute, match="none from version 2 of epoch 1.* from the anchors of version 1 of epoch 1"):
        cheapest_route(catalogue([entry(V[5], V[4]), entry(V[1])]), V[2])


def test_a_budget_counts_bytes_and_says_what_is_needed() -> None:
    latest = catalogue([entry(V[1], size=700), entry(V[2], V[1], size=300)])
    assert cheapest_route(latest, None, max_bytes=1000).bytes == 1000
    with pytest.raises(BudgetExceeded, match="takes 1000 bytes, more than the 999") as refused:
        cheapest_route(latest, None, max_bytes=999)
    assert (refused.value.needed, refused.value.budget) == (1000, 999)
