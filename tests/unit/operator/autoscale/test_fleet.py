"""What replicas are worth, and which pools come first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.evidence import fleet, home
from trimtab.operator.autoscale.fleet import best_first, device_weights, speed_weights


def test_speeds_decide_what_a_replica_is_worth_and_devices_where_there_is_none() -> None:
    pools = fleet(home(1, name="fast"), home(1, name="slow", devices=2), home(1, name="new", devices=4))
    assert device_weights(pools) == {"fast": 1, "slow": 2, "new": 4}
    assert speed_weights(pools, {}) == device_weights(pools)
    assert speed_weights(pools, {"fast": 3.0, "slow": 2.0}) == {"fast": 3, "slow": 2, "new": 8}


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        ({}, {}, "a"),
        ({"cost": 2.0}, {"cost": 1.0}, "b"),
        ({"cost": 2.0, "priority": 1}, {"cost": 1.0}, "a"),
        ({"devices": 2}, {}, "b"),
    ],
)
def test_priority_then_production_for_the_money(a: dict[str, Any], b: dict[str, Any], first: str) -> None:
    pools = fleet(home(1, name="a", **a), home(1, name="b", **b))
    assert best_first(pools, {"a": 1.0, "b": 1.0})[0].name == first


def test_a_paused_pool_keeps_its_size() -> None:
    pool = home(3, paused=True, min_replicas=1, max_replicas=9)
    assert (pool.least, pool.most) == (3, 3)


def test_startup_is_the_slowest_that_could_grow() -> None:
    pools = fleet(
        home(1, name="a", startup_s=30.0),
        home(1, name="b", startup_s=90.0),
        home(1, name="c", startup_s=300.0, paused=True),
    )
    assert pools.startup_s() == 90.0
