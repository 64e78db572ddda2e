"""What is said of a pool whose cluster is away: the last that was known, since when, and when it counts as lost."""

from __future__ import annotations

from tests.support.remote.lost_pools import ELSEWHERE, LOST_AFTER_S, job_with, pools_of
from trimtab.api.conditions import ConditionType
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.operator.conditions import find, updated
from trimtab.operator.plan.reachability import (
    is_lost,
    lost_at,
    reachable,
    status_out_of_reach,
    status_while_connecting,
)
from trimtab.operator.reconcile.transitions import transitions

FROM = 1000.0
OVER = FROM + LOST_AFTER_S


def _pool() -> RolloutPool:
    (pool,) = pools_of(job_with({"name": "far", "replicas": 2, "cluster": ELSEWHERE}))
    conditions = updated((), [reachable()], generation=1, now=0.0)
    return pool.model_copy(update={"status": RolloutPoolStatus(conditions=conditions, replicas=2, ready_replicas=2)})


def _cut(pool: RolloutPool, *, now: float, reason: str = "Unreachable") -> RolloutPool:
    status = status_out_of_reach(pool, reason=reason, message="no answer", now=now)
    return pool.model_copy(update={"status": status})


def _said(pool: RolloutPool) -> tuple[str, str, float]:
    assert pool.status is not None
    condition = find(pool.status.conditions, ConditionType.REACHABLE)
    assert condition is not None
    return condition.status, condition.reason, condition.last_transition_time.timestamp()


def test_the_last_that_was_known_stays_for_a_while() -> None:
    away = _cut(_pool(), now=FROM)
    assert _said(away) == ("False", "Unreachable", FROM)
    assert away.status is not None
    assert (away.status.replicas, away.status.ready_replicas) == (2, 2)
    assert lost_at(away) == OVER
    assert _cut(away, now=FROM + 50) == away


def test_then_it_counts_for_nothing() -> None:
    lost = _cut(_cut(_pool(), now=FROM), now=OVER)
    assert is_lost(lost, now=OVER)
    assert _said(lost) == ("False", "Lost", FROM)
    assert lost.status is not None
    assert (lost.status.replicas, lost.status.ready_replicas) == (0, 0)
    assert _cut(lost, now=OVER + 500) == lost


def test_a_refused_kubeconfig_keeps_its_reason() -> None:
    lost = _cut(_cut(_pool(), now=FROM, reason="BadKubeConfig"), now=OVER, reason="BadKubeConfig")
    assert _said(lost)[:2] == ("False", "BadKubeConfig")
    assert is_lost(lost, now=OVER)


def test_one_trouble_after_another_is_one_loss() -> None:
    away = _cut(_cut(_pool(), now=FROM), now=FROM + 60, reason="Unauthorized")
    assert _said(away) == ("False", "Unauthorized", FROM)


def test_an_operator_that_has_just_begun_changes_nothing() -> None:
    away = _cut(_pool(), now=FROM)
    assert status_while_connecting(away, now=FROM + 70) == away.status
    fresh = away.model_copy(update={"status": None})
    fresh = fresh.model_copy(update={"status": status_while_connecting(fresh, now=FROM)})
    assert _said(fresh)[:2] == ("Unknown", "Connecting")
    assert lost_at(fresh) is None


def test_each_turn_is_told_once() -> None:
    there = _pool()
    away, lost = _cut(there, now=FROM), _cut(_cut(there, now=FROM), now=OVER)
    assert there.status is not None
    assert away.status is not None
    assert lost.status is not None
    back = lost.status.model_copy(
        update={"conditions": updated(lost.status.conditions, [reachable()], generation=1, now=OVER + 9)}
    )
    told = [
        [transition.reason for transition in transitions(before, after)]
        for before, after in (
            (there.status, away.status),
            (away.status, away.status),
            (away.status, lost.status),
            (lost.status, lost.status),
            (lost.status, back),
        )
    ]
    assert told == [["ClusterUnreachable"], [], ["ClusterLost"], [], ["ClusterReachable"]]
