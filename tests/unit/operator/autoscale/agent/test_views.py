from __future__ import annotations

import json
from typing import Any

from tests.support.agent.cases import NOW, case, instance, pool, report
from trimtab.operator.autoscale.agent.views import history_view, instances_view, report_view
from trimtab.operator.autoscale.history import PastDecision


def test_the_report_shows_balance_pools_limits_and_formula() -> None:
    shown = json.loads(report_view(case(), policies=["main"]))

    assert shown["reports"] == [
        {
            "policy": "main",
            "seconds_ago": 30.0,
            "steps": [111, 120],
            "wait_fraction": 0.2,
            "wall_seconds": 600.0,
            "samples_produced": 2000,
            "samples_accepted": 1900,
            "samples_consumed": 2048,
            "tokens_produced": 9_000_000,
            "samples_replayed": 0,
            "stale_skipped": 0,
            "instances": 6,
            "zone": "grow",
        }
    ]
    assert shown["pools"][1] == {
        "pool": "spot",
        "replicas": 2,
        "ready": 2,
        "min_replicas": 1,
        "max_replicas": 12,
        "devices_per_replica": 1,
        "samples_per_second_per_replica": 0.55,
        "cost_per_hour_per_replica": 0.4,
        "start_up_seconds": 120.0,
    }
    assert shown["limits"]["may_remove_now"] == 1
    assert shown["formula"]["targets"] == [{"pool": "home", "replicas": 4}, {"pool": "spot", "replicas": 4}]


def test_a_policy_that_has_not_reported_is_said_to_have_none() -> None:
    shown = json.loads(report_view(case(reports={"main": ()}), policies=["main"]))

    assert shown["reports"] == [{"policy": "main", "report": None}]


def test_history_leaves_the_newest_report_out_and_ends_where_it_was_asked_to() -> None:
    reports = tuple(report(wait_fraction=n / 100, age_s=60.0 * n) for n in range(20))
    decisions = tuple(
        PastDecision(at=NOW - n, maintainer="Agent", current=n, target=n, reason="WithinBand") for n in range(50)
    )
    shown = json.loads(history_view(case(reports={"main": reports}, decisions=decisions), policies=["main"], windows=3))

    assert [one["wait_fraction"] for one in shown["earlier_reports"]] == [0.01, 0.02, 0.03]
    assert [one["replicas_before"] for one in shown["decisions"]] == list(range(20))


def test_those_whose_loss_costs_least_come_first() -> None:
    assert _ids(pool=None, skip=0, limit=100) == [
        "math-home-3",
        "math-home-2",
        "math-home-1",
        "math-home-0",
        "math-spot-0",
        "math-spot-1",
    ]


def test_instances_are_listed_by_pool_and_page() -> None:
    assert _ids(pool="spot", skip=0, limit=100) == ["math-spot-0", "math-spot-1"]
    page = _shown(pool=None, skip=2, limit=3)
    assert [one["id"] for one in page["instances"]] == ["math-home-1", "math-home-0", "math-spot-0"]
    assert (page["before"], page["after"]) == (2, 1)
    assert _shown(pool=None, skip=90, limit=3) == {"instances": [], "before": 6, "after": 0}


def test_figures_that_json_does_not_have_are_left_out() -> None:
    odd = case(
        pools=(pool("home", desired=1, samples_per_second=float("nan"), start_up_seconds=float("inf")),),
        instances=(instance("a", pool="home", samples_per_second=1234.5678),),
    )

    shown = json.loads(report_view(odd, policies=[]))["pools"][0]
    assert (shown["samples_per_second_per_replica"], shown["start_up_seconds"]) == (None, None)
    assert json.loads(instances_view(odd, pool=None, skip=0, limit=1))["instances"][0]["samples_per_second"] == 1235.0


def _shown(*, pool: str | None, skip: int, limit: int) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(instances_view(case(), pool=pool, skip=skip, limit=limit))
    return shown


def _ids(*, pool: str | None, skip: int, limit: int) -> list[str]:
    return [one["id"] for one in _shown(pool=pool, skip=skip, limit=limit)["instances"]]
