"""Capacity into replicas of pools."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operator.evidence import fleet, home
from trimtab.fabric.wire.balance import Branch
from trimtab.operator.autoscale.distribution import Want, distributed, spread, within_bounds
from trimtab.operator.autoscale.fleet import Fleet


def wants(**capacities: float) -> list[Want]:
    return [
        Want(policy=policy, branch=Branch.HOLD, capacity=capacity, reason="Test", message="")
        for policy, capacity in capacities.items()
    ]


CHEAP = home(2, name="cheap", cost=1.0, max_replicas=5)
DEAR = home(2, name="dear", cost=2.0, min_replicas=1)
BOTH = fleet(CHEAP, DEAR)
ONE = {"cheap": 1.0, "dear": 1.0}


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        pytest.param(4, (2, 2), id="as it is"),
        pytest.param(4.01, (3, 2), id="a part of a replica is a replica"),
        pytest.param(7, (5, 2), id="the best first"),
        pytest.param(9, (5, 4), id="then the next"),
        pytest.param(3, (2, 1), id="the worst drains first"),
        pytest.param(1, (0, 1), id="down to its minimum"),
        pytest.param(3.5, (2, 2), id="half a replica stays"),
    ],
)
def test_one_policy(capacity: float, expected: tuple[int, int]) -> None:
    placed = distributed(wants(solver=capacity), fleet=BOTH, weights=ONE)
    assert (placed["cheap"], placed["dear"]) == expected


def test_faster_pools_need_fewer_replicas() -> None:
    assert distributed(wants(solver=16.0), fleet=BOTH, weights={"cheap": 4.0, "dear": 2.0}) == {"cheap": 3, "dear": 2}


def test_the_neediest_policy_decides_growth() -> None:
    assert distributed(wants(solver=4, critic=6), fleet=BOTH, weights=ONE) == {"cheap": 4, "dear": 2}


def test_nothing_goes_that_one_of_them_needs() -> None:
    assert distributed(wants(solver=2, critic=4), fleet=BOTH, weights=ONE) == {"cheap": 2, "dear": 2}
    assert sum(distributed(wants(solver=1, critic=3), fleet=BOTH, weights=ONE).values()) == 3


def test_a_grower_and_a_shrinker_only_grow() -> None:
    placed = distributed(wants(solver=1, critic=6), fleet=BOTH, weights=ONE)
    assert sum(placed.values()) == 6
    assert all(placed[name] >= size for name, size in BOTH.sizes.items())


def test_no_wants_change_nothing() -> None:
    assert distributed([], fleet=BOTH, weights=ONE) == BOTH.sizes


def test_paused_pools_are_left_alone() -> None:
    pools = fleet(home(2, name="cheap", cost=1.0, paused=True), DEAR)
    assert distributed(wants(solver=9), fleet=pools, weights=ONE)["cheap"] == 2
    assert distributed(wants(solver=0), fleet=pools, weights=ONE)["cheap"] == 2


def test_a_total_is_spread() -> None:
    assert spread(6, fleet=BOTH, weights=ONE) == {"cheap": 4, "dear": 2}
    assert spread(2, fleet=BOTH, weights=ONE) == {"cheap": 1, "dear": 1}


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    pools = []
    for number in range(draw(st.integers(1, 3))):
        least = draw(st.integers(0, 3))
        most = draw(st.none() | st.integers(least, 8))
        pools.append(
            home(
                draw(st.integers(0, 10)),
                name=f"pool-{number}",
                min_replicas=least,
                max_replicas=most,
                paused=draw(st.booleans()),
                cost=draw(st.none() | st.floats(0.1, 10)),
            )
        )
    return Fleet(pools=tuple(pools))


@given(fleets(), st.integers(0, 30), st.none() | st.integers(0, 30))
def test_bounds_hold_wherever_they_can(pools: Fleet, least: int, most: int | None) -> None:
    if most is not None:
        most = max(least, most)
    weights = dict.fromkeys(pools.sizes, 1.0)
    bounded = within_bounds(pools.sizes, fleet=pools, weights=weights, least=least, most=most)
    for pool in pools.pools:
        assert pool.least <= bounded[pool.name]
        assert pool.most is None or bounded[pool.name] <= max(pool.most, pool.least)
    total, floor = sum(bounded.values()), sum(pool.least for pool in pools.pools)
    ceiling = sum(pool.most if pool.most is not None else 1000 for pool in pools.pools)
    assert total >= min(least, ceiling)
    assert most is None or total <= max(most, floor)
    again = within_bounds(bounded, fleet=pools, weights=weights, least=least, most=most)
    assert again == bounded
