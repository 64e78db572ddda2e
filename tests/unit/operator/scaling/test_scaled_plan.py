"""The autoscaler inside a job's plan: what it changes, what it leaves alone, and what it remembers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.dataflow.jobs import job
from tests.support.operator.scaling import NOW, SCALING, fleet, planned, reason, sizes, starving
from trimtab.api import labels
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPoolStatus
from trimtab.fabric.wire.balance import BalanceReport, Instance, StageLoad
from trimtab.fabric.wire.member import State
from trimtab.operator.conditions import Statement, find, updated
from trimtab.operator.plan.actions import PutPool
from trimtab.operator.plan.children import pool_of


def scaled_job(**scaling: Any) -> RLJob:
    return job(autoscaling={**SCALING, **scaling}, pools=[{"name": "local", "replicas": 2}])


def test_a_starving_trainer_gets_a_larger_pool_and_the_size_is_signed() -> None:
    of = scaled_job()
    plan = planned(of, fleet(of))
    (action,) = (action for action in plan.plan.actions if isinstance(action, PutPool))
    assert action.pool.spec.replicas == 4
    assert action.pool.metadata.annotations[labels.AUTOSCALED_REPLICAS] == "4"
    assert plan.plan.status.autoscaling is not None
    assert plan.plan.status.autoscaling.bounded == 4
    assert [event.reason for event in plan.events] == ["SuccessfulRescale"]


def test_a_dry_run_says_the_same_and_does_nothing() -> None:
    of = scaled_job(mode="DryRun")
    plan = planned(of, fleet(of))
    assert sizes(plan) == []
    assert plan.plan.status.autoscaling is not None
    assert plan.plan.status.autoscaling.bounded == 4
    assert plan.events == ()


def test_nothing_is_scaled_before_the_children_are_as_the_manifest_has_them() -> None:
    of = scaled_job()
    plan = planned(of, fleet(of, maxConcurrency=3))
    assert sizes(plan) == [2], "the size changed together with the rest of the spec"
    assert plan.plan.status.autoscaling is None


def test_a_job_at_rest_keeps_its_sizes() -> None:
    of = scaled_job()
    asleep = of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": True})})
    assert sizes(planned(asleep, fleet(of))) == []


def test_a_pool_that_somebody_lends_keeps_its_size_and_counts() -> None:
    of = scaled_job()
    lent = fleet(of).model_copy(
        update={
            "metadata": fleet(of).metadata.model_copy(update={"name": "lent", "labels": {}, "owner_references": ()})
        }
    )
    plan = planned(of, fleet(of), lent, balance={"solver": (starving(of, replicas=4),)})
    changed = [action.pool.metadata.name for action in plan.plan.actions if isinstance(action, PutPool)]
    assert changed == ["job-local"]
    assert plan.plan.status.autoscaling is not None
    assert plan.plan.status.autoscaling.current == 4


STAGES = [{"name": "own", "computes": "Custom", "plugin": {"entrypoint": "a:B"}, "pool": "scorers"}]


def staged_job(**scorers: Any) -> RLJob:
    pools = [{"name": "local", "replicas": 2}, {"name": "scorers", "replicas": 3, "rollouts": False, **scorers}]
    return job(autoscaling=SCALING, pools=pools, stages=STAGES)


def busy(of: RLJob, *, in_flight: float, at: float = NOW, staged: int = 0) -> BalanceReport:
    pods = tuple(
        Instance(member_id=f"s-{number}", pool="scorers", state=State.READY, mean_in_flight=in_flight, capacity=4)
        for number in range(3)
    )
    load = StageLoad(stage="own", waiting=0, done=100)
    return replace(starving(of, at=at), stage_pods=pods, stages=(load,), staged=staged, room=100)


def test_a_pool_of_stages_alone_is_sized_by_its_places_in_use() -> None:
    of = staged_job(maxReplicas=8)
    made = [pool_of(of, pool, None) for pool in of.spec.pools]
    plan = planned(of, *made, balance={"solver": (busy(of, in_flight=4.0),)})
    changed = {
        action.pool.metadata.name: action.pool.spec.replicas
        for action in plan.plan.actions
        if isinstance(action, PutPool)
    }
    assert changed == {"job-local": 4, "job-scorers": 5}
    assert plan.history is not None
    assert plan.history.stages is not None
    status = plan.plan.status.autoscaling
    assert status is not None
    assert (status.current, status.bounded) == (2, 4), "stage pools are no rollout replicas"
    assert {pool.name: pool.target for pool in status.pools} == {"local": 4, "scorers": 5}
    assert "100 % of 12 places in use" in status.message
    grown = of.model_copy(update={"status": plan.plan.status})
    kept = made[1].model_copy(update={"spec": made[1].spec.model_copy(update={"replicas": 5})})
    assert pool_of(grown, grown.spec.pools[1], kept).spec.replicas == 5, "the manifest's number does not undo it"


def test_rollout_pools_do_not_grow_while_samples_wait_for_stages() -> None:
    of = staged_job(maxReplicas=8)
    made = [pool_of(of, pool, None) for pool in of.spec.pools]
    plan = planned(of, *made, balance={"solver": (busy(of, in_flight=4.0, staged=60),)})
    changed = [action.pool.metadata.name for action in plan.plan.actions if isinstance(action, PutPool)]
    assert changed == ["job-scorers"]
    assert plan.plan.status.autoscaling is not None
    assert "60 samples of solver wait for stages" in plan.plan.status.autoscaling.message


def test_a_pool_of_stages_alone_without_a_bound_keeps_the_size_of_the_manifest() -> None:
    of = staged_job()
    made = [pool_of(of, pool, None) for pool in of.spec.pools]
    plan = planned(of, *made, balance={"solver": (busy(of, in_flight=4.0),)})
    changed = [action.pool.metadata.name for action in plan.plan.actions if isinstance(action, PutPool)]
    assert changed == ["job-local"]
    assert plan.plan.status.autoscaling is not None
    assert plan.plan.status.autoscaling.current == 2
    larger = staged_job(replicas=5)
    assert pool_of(larger, larger.spec.pools[1], made[1]).spec.replicas == 5, "no autoscaler has a say"


def test_after_a_restart_a_decision_that_was_not_carried_out_is_nobodys_hand() -> None:
    of = scaled_job()
    first = planned(of, fleet(of))
    told = of.model_copy(update={"status": first.plan.status})
    again = planned(told, fleet(told, annotated=2), now=NOW + 200.0)
    assert reason(again, ConditionType.ABLE_TO_SCALE) != "ScaledByHand"


def test_after_a_restart_a_size_by_hand_is_still_known_as_such() -> None:
    of = scaled_job()
    plan = planned(of, fleet(of, replicas=3, annotated=2))
    assert reason(plan, ConditionType.ABLE_TO_SCALE) == "ScaledByHand"


def test_the_same_decision_is_not_written_again() -> None:
    of = scaled_job(mode="DryRun")
    first = planned(of, fleet(of))
    told = of.model_copy(update={"status": first.plan.status})
    second = planned(told, fleet(of), history=first.history, now=NOW + 1.0)
    assert second.plan.status == first.plan.status


def test_switched_off_it_takes_back_what_it_said() -> None:
    of = scaled_job(mode="DryRun")
    told = of.model_copy(update={"status": planned(of, fleet(of)).plan.status})
    off = told.model_copy(update={"spec": told.spec.model_copy(update={"autoscaling": job().spec.autoscaling})})
    plan = planned(off, fleet(off))
    assert plan.plan.status.autoscaling is None
    assert reason(plan, ConditionType.SCALING_ACTIVE) == "ScalingDisabled"
    assert find(plan.plan.status.conditions, ConditionType.ABLE_TO_SCALE) is None


def test_a_size_outside_new_bounds_of_its_pool_is_brought_in() -> None:
    of = job(autoscaling=SCALING, pools=[{"name": "local", "replicas": 2, "maxReplicas": 3}])
    wide = fleet(scaled_job(), replicas=5)
    assert sizes(planned(of, wide)) == [3]


def test_a_lost_cluster_takes_nothing_from_what_the_job_may_cost() -> None:
    cluster = {"kubeconfigSecret": {"name": "far", "key": "kubeconfig"}, "lostAfterSeconds": 60}
    far = {"name": "far", "replicas": 3, "cluster": cluster}
    of = job(autoscaling={**SCALING, "maxReplicas": 5}, pools=[{"name": "local", "replicas": 2}, far])
    home = fleet(of)
    elsewhere = pool_of(of, of.spec.pools[1], None)
    away = Statement(type=ConditionType.REACHABLE, holds=False, reason="Unreachable")
    for since, grown in ((NOW - 10, []), (NOW - 100, [4])):
        status = RolloutPoolStatus(conditions=updated((), [away], generation=None, now=since))
        assert sizes(planned(of, home, elsewhere.model_copy(update={"status": status}))) == grown
