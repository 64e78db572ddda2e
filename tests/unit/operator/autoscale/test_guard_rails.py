"""Each rail by itself: 8 replicas in one pool unless said otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.operator.evidence import NOW, auto, fleet, home
from trimtab.api.autoscaling import Autoscaling
from trimtab.operator.autoscale.fleet import Fleet
from trimtab.operator.autoscale.guard_rails import Bounded, Limit, bounded, may_add, may_remove
from trimtab.operator.autoscale.history import Change, History, Wanted

LONG_AGO = History(since=0.0)
UNKNOWN = Limit(reason="ReportStale", message="old")
FREE = {
    "scale_up": {"max_change": 100, "stabilization_seconds": 0},
    "scale_down": {"max_change": 100, "stabilization_seconds": 0},
}


def railed(
    target: int | dict[str, int],
    *,
    pools: Fleet | None = None,
    config: Autoscaling | None = None,
    history: History = LONG_AGO,
    no_shrink: Limit | None = None,
    no_growth: Limit | None = None,
) -> Bounded:
    pools = pools or fleet(home(8))
    return bounded(
        {"home": target} if isinstance(target, int) else target,
        fleet=pools,
        weights=dict.fromkeys(pools.sizes, 1.0),
        config=config or auto(**FREE),
        history=history,
        no_shrink=no_shrink,
        no_growth=no_growth,
        now=NOW,
    )


def reasons(kept: Bounded) -> list[str]:
    return [limit.reason for limit in kept.limits]


@pytest.mark.parametrize(
    ("target", "size", "reason"),
    [(8, 8, []), (12, 12, []), (3, 3, []), (25, 20, ["TooManyReplicas"]), (0, 1, ["TooFewReplicas"])],
)
def test_bounds(target: int, size: int, reason: list[str]) -> None:
    kept = railed(target)
    assert (kept.targets["home"], reasons(kept)) == (size, reason)


def test_a_fleet_outside_its_bounds_comes_back_at_once() -> None:
    config = auto(max_replicas=5, scale_down={"paused": True, "max_change": 1})
    cooling = replace(LONG_AGO, cooldown_until=NOW + 60)
    assert railed(8, config=config, history=cooling, no_shrink=UNKNOWN).targets == {"home": 5}


def test_without_evidence_nothing_shrinks_and_growth_goes_on() -> None:
    kept = railed(3, no_shrink=UNKNOWN)
    assert (kept.targets["home"], reasons(kept)) == (8, ["ReportStale"])
    assert railed(9, no_shrink=UNKNOWN).targets["home"] == 9


def test_growth_that_would_bring_nothing_is_left_out_whatever_else_holds() -> None:
    behind = Limit(reason="StagesBehind", message="samples wait for stages")
    kept = railed(12, no_growth=behind)
    assert (kept.targets["home"], reasons(kept)) == (8, ["StagesBehind"])
    assert railed(5, no_growth=behind).targets["home"] == 5
    pools = fleet(home(4, name="old"), home(4, name="new"))
    both = railed({"old": 2, "new": 8}, pools=pools, no_shrink=UNKNOWN, no_growth=behind)
    assert both.targets == {"old": 4, "new": 4}


@pytest.mark.parametrize(("target", "size"), [(12, 8), (4, 4)])
def test_growth_paused(target: int, size: int) -> None:
    assert railed(target, config=auto(**FREE | {"scale_up": {"paused": True}})).targets["home"] == size


@pytest.mark.parametrize(("target", "size"), [(12, 12), (4, 8)])
def test_shrinking_paused(target: int, size: int) -> None:
    assert railed(target, config=auto(**FREE | {"scale_down": {"paused": True}})).targets["home"] == size


def steady(down: int = 300, up: int = 0) -> Autoscaling:
    return auto(
        scale_up={"max_change": 100, "stabilization_seconds": up},
        scale_down={"max_change": 100, "stabilization_seconds": down},
    )


def wished(*wishes: tuple[float, int], since: float = 0.0) -> History:
    return History(since=since, wanted=tuple(Wanted(at=NOW - ago, targets={"home": size}) for ago, size in wishes))


@pytest.mark.parametrize(
    ("history", "size"),
    [
        pytest.param(wished((400, 4), (100, 4)), 4, id="wanted all the time"),
        pytest.param(wished((400, 4), (100, 6)), 6, id="the highest of the window"),
        pytest.param(wished((400, 8), (100, 4)), 8, id="what was in force when it began"),
        pytest.param(wished((400, 12), (299, 4)), 8, id="more was wanted"),
        pytest.param(wished(), 4, id="nothing else was ever wanted"),
        pytest.param(wished(since=NOW - 299), 8, id="not watched for as long yet"),
    ],
)
def test_shrinking_takes_the_highest_of_the_window(history: History, size: int) -> None:
    kept = railed(4, config=steady(), history=history)
    assert kept.targets["home"] == size
    assert ("ScaleDownStabilized" in reasons(kept)) is (size > 4)


def test_growth_takes_the_lowest_of_its_window() -> None:
    kept = railed(12, config=steady(up=60), history=wished((90, 9), (30, 12)))
    assert (kept.targets["home"], reasons(kept)) == (9, ["ScaleUpStabilized"])


def test_nothing_happens_while_it_cools_down() -> None:
    cooling = replace(LONG_AGO, cooldown_until=NOW + 1)
    for target in (4, 12):
        kept = railed(target, history=cooling)
        assert (kept.targets["home"], reasons(kept)) == (8, ["CoolingDown"])
    assert railed(4, history=replace(cooling, cooldown_until=NOW)).targets["home"] == 4


def slow() -> Autoscaling:
    return auto(
        scale_up={"max_change": "50%", "period_seconds": 60},
        scale_down={"max_change": 2, "period_seconds": 60, "stabilization_seconds": 0},
    )


def test_rates() -> None:
    assert railed(20, config=slow()).targets["home"] == 12
    assert reasons(railed(20, config=slow())) == ["ScaleUpLimit"]
    assert railed(1, config=slow()).targets["home"] == 6
    assert reasons(railed(1, config=slow())) == ["ScaleDownLimit"]


def test_the_period_counts_from_the_size_at_its_beginning() -> None:
    grown = (Change(at=NOW - 30, added=2, removed=0),)
    assert may_add(grown, total=8, max_change="50%", period_s=60, now=NOW) == 1  # 3 of 6, less 2
    assert may_add(grown, total=8, max_change="50%", period_s=30, now=NOW) == 4
    assert may_remove(grown, total=8, max_change="50%", period_s=60, now=NOW) == 3
    assert may_add((), total=0, max_change="100%", period_s=60, now=NOW) == 1


def test_a_change_before_a_restart_uses_up_its_period() -> None:
    forgotten = (Change(at=NOW - 30, added=None, removed=None),)
    assert may_add(forgotten, total=8, max_change=100, period_s=60, now=NOW) == 0
    assert may_remove(forgotten, total=8, max_change=100, period_s=30, now=NOW) == 100


def test_a_move_between_pools_of_which_only_half_is_allowed_stays_within_the_job() -> None:
    pools = fleet(home(4, name="old"), home(4, name="new"))
    kept = railed({"old": 0, "new": 8}, pools=pools, config=auto(max_replicas=8, **FREE), no_shrink=UNKNOWN)
    assert kept.targets == {"old": 4, "new": 4}
    kept = railed(
        {"old": 0, "new": 8}, pools=pools, config=auto(min_replicas=8, **FREE | {"scale_up": {"paused": True}})
    )
    assert kept.targets == {"old": 4, "new": 4}


def test_limited_growth_goes_to_the_best_pool() -> None:
    pools = fleet(home(4, name="dear", cost=3.0), home(4, name="cheap", cost=1.0))
    assert railed({"dear": 10, "cheap": 6}, pools=pools, config=slow()).targets == {"dear": 6, "cheap": 6}
    assert railed({"dear": 0, "cheap": 0}, pools=pools, config=slow()).targets == {"dear": 2, "cheap": 4}
