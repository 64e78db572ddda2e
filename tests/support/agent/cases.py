"""A job with two pools and a handful of instances, whose trainer waits a fifth of its time."""

from __future__ import annotations

from typing import Any

from trimtab.fabric.wire.balance import BalanceReport, Branch, Volume
from trimtab.operator.autoscale.agent.case import (
    Case,
    InstanceState,
    Limits,
    PoolState,
)
from trimtab.operator.autoscale.history import PastDecision
from trimtab.operator.autoscale.recommendation import Recommendation

NOW = 1_800_000_000.0


def report(*, policy: str = "main", wait_fraction: float = 0.2, age_s: float = 30.0) -> BalanceReport:
    return BalanceReport(
        job="math",
        policy=policy,
        version=120,
        first_step=111,
        last_step=120,
        wall_seconds=600.0,
        wait_seconds=600.0 * wait_fraction,
        step_seconds=600.0,
        wait_fraction=wait_fraction,
        produced=Volume(samples=2000, tokens=9_000_000),
        accepted=Volume(samples=1900, tokens=8_500_000),
        consumed=Volume(samples=2048, tokens=8_800_000),
        maintainer="ThreeZone",
        branch=Branch.GROW,
        current=6,
        target=8,
        at=NOW - age_s,
    )


def pool(name: str, *, desired: int, **changes: Any) -> PoolState:
    values: dict[str, Any] = {
        "name": name,
        "desired": desired,
        "ready": desired,
        "min_replicas": 1,
        "max_replicas": 12,
        "devices_per_replica": 1,
        "samples_per_second": 0.55,
        "start_up_seconds": 120.0,
    }
    return PoolState(**values | changes)


def instance(id_: str, *, pool: str, **changes: Any) -> InstanceState:
    values: dict[str, Any] = {
        "id": id_,
        "pool": pool,
        "state": "ready",
        "samples_per_second": 0.5,
        "tokens_per_second": 2500.0,
        "availability": 1.0,
        "version_lag": 1,
        "in_flight": 32,
    }
    return InstanceState(**values | changes)


def case(**changes: Any) -> Case:
    values: dict[str, Any] = {
        "namespace": "team",
        "job": "math",
        "decision_id": "d-0001",
        "at": NOW,
        "tau_low": 0.05,
        "tau_high": 0.10,
        "reports": {
            "main": (report(), report(wait_fraction=0.15, age_s=630.0), report(wait_fraction=0.1, age_s=1230.0))
        },
        "pools": (pool("home", desired=4), pool("spot", desired=2, cost_per_hour=0.4)),
        "instances": (
            instance("math-home-0", pool="home"),
            instance("math-home-1", pool="home", samples_per_second=0.1),
            instance("math-home-2", pool="home", state="starting", samples_per_second=0.0),
            instance("math-home-3", pool="home", suspect=True),
            instance("math-spot-0", pool="spot"),
            instance("math-spot-1", pool="spot", last_error="engine-timeout: 30 s"),
        ),
        "limits": Limits(min_replicas=2, max_replicas=16, may_add=6, may_remove=1, cooldown_seconds=0.0),
        "recommended": Recommendation(
            targets={"home": 4, "spot": 4}, reason="TrainerStarving", message="w is 0.20, above 0.10"
        ),
        "decisions": (PastDecision(at=NOW - 900, maintainer="Policy", current=5, target=6, reason="TrainerStarving"),),
    }
    return Case(**values | changes)
