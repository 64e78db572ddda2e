"""What is kept is what someone needs, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.weights.catalogues import POSITIONS, all_routes, catalogues
from tests.support.weights.sealed_samples import MIB, catalogue, entry
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.retention import retained
from trimtab.weights.store.route import NoRoute, Route, as_of, cheapest_route

V = [Position(1, version) for version in range(20)]


def route_or_none(latest: Latest, held: Position | None) -> Route | None:
    try:
        return cheapest_route(latest, held)
    except NoRoute:
        return None


@given(latest=catalogues, held=st.sets(st.sampled_from(POSITIONS), max_size=3), keep=st.integers(1, 4))
def test_exactly_what_is_needed_is_kept(latest: Latest, held: set[Position], keep: int) -> None:
    useful = {entry for entry in latest.catalogue if all_routes(latest, entry.target)} if latest.newest else set()
    recent = sorted({entry.target for entry in useful}, reverse=True)[:keep]
    needed = {entry for entry in useful if entry.target in recent}
    for start in (None, *held):
        route = route_or_none(latest, start)
        needed.update(route.entries if route else ())
    kept = retained(latest, held, keep_versions=keep)
    assert set(kept) == needed
    assert kept == tuple(entry for entry in latest.catalogue if entry in needed)
    # Dropping the rest makes nobody's way longer, and a second time there is nothing to drop.
    lean = latest.keeping(kept)
    for start in (None, *held):
        assert route_or_none(lean, start) == route_or_none(latest, start)
    assert retained(lean, held, keep_versions=keep) == kept


def chain(length: int) -> list[Entry]:
    return [entry(V[0], size=100 * MIB), *(entry(V[n], V[n - 1], size=MIB) for n in range(1, length))]


def test_old_singles_go_when_a_fold_or_a_newer_anchor_serves_everybody() -> None:
    fold, anchor = entry(V[9], V[4], size=2 * MIB), entry(V[8], size=90 * MIB)
    latest = catalogue([*chain(10), fold, anchor])
    kept = retained(latest, {V[4]}, keep_versions=1)
    assert kept == (latest.catalogue[9], fold, anchor)


def test_the_chain_of_the_slowest_member_stays() -> None:
    latest = catalogue(chain(10))
    assert retained(latest, {V[9]}, keep_versions=1) == latest.catalogue, "a joiner needs all of it"
    latest = catalogue([*chain(10), entry(V[9], size=50 * MIB)])
    assert [e.target for e in retained(latest, {V[6]}, keep_versions=2)] == [V[7], V[8], V[9], V[9]]


def test_a_dead_lineage_goes() -> None:
    dead = [entry(V[n], V[n - 1]) for n in (6, 7)]
    successor = entry(Position(2, 6), V[5])
    latest = catalogue([*chain(6), *dead, successor])
    assert retained(latest, {V[7]}, keep_versions=20) == (*chain(6), successor)


def test_something_must_be_kept() -> None:
    with pytest.raises(ValueError, match="keep_versions is 0"):
        retained(catalogue(chain(2)), (), keep_versions=0)


def test_the_way_to_a_version_that_is_kept_stays_whatever_is_newer() -> None:
    anchor = entry(V[9], size=10 * MIB)
    latest = catalogue([*chain(12), anchor])
    recent = retained(latest, (), keep_versions=2)
    assert {e.target for e in recent} == {V[9], V[10], V[11]}
    kept = retained(latest, (), keep_versions=2, kept={V[3]})
    assert {e.target for e in kept} == {V[0], V[1], V[2], V[3], V[9], V[10], V[11]}
    assert cheapest_route(as_of(latest.keeping(kept), V[3]), None).entries == latest.catalogue[:4]


def test_a_version_that_is_kept_may_be_of_a_dead_lineage_and_one_that_is_gone_keeps_nothing() -> None:
    dead = [entry(V[n], V[n - 1]) for n in (6, 7)]
    latest = catalogue([*chain(6), *dead, entry(Position(2, 6), V[5])])
    assert retained(latest, (), keep_versions=1, kept={V[7]}) == latest.catalogue
    assert retained(latest, (), keep_versions=1, kept={V[15]}) == retained(latest, (), keep_versions=1)


def test_versions_as_large_as_copies_are_kept_as_far_as_there_is_room() -> None:
    large = [entry(V[0], size=10 * MIB), *(entry(V[n], V[n - 1], size=10 * MIB) for n in range(1, 12))]
    latest = catalogue([*large, entry(V[9], size=10 * MIB)])
    assert {e.target for e in retained(latest, (), keep_versions=200)} == set(V[:12])
    kept = retained(latest, (), keep_versions=200, copies=6)
    assert {e.target for e in kept} == {V[n] for n in range(7, 12)}, "version 9 has its anchor too"
    small = catalogue(chain(12))
    assert retained(small, (), keep_versions=200, copies=6) == small.catalogue
    assert {e.target for e in retained(latest, (), keep_versions=200, copies=1)} >= {V[9], V[10], V[11]}, "the way in"
