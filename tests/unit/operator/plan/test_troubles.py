"""What keeps pods from running is told by pool, trainer and job."""

from __future__ import annotations

from typing import Any

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import pool, rank, trainer, worker
from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.operator.conditions import find, moment
from trimtab.operator.plan.job import JobPlan, Observed, plan_job
from trimtab.operator.plan.job_pods import dataflow_pods
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.pool import plan_pool
from trimtab.operator.plan.trainer import plan_trainer
from trimtab.operator.plan.troubles import NODE_NOT_READY, Trouble

JOB = job(trainer={"replicas": 2})
FULL: dict[str, Any] = {
    "phase": Phase.PENDING,
    "ready": False,
    "trouble": Trouble(reason="Unschedulable", message="no node fits", since=5.0),
}
LOST: dict[str, Any] = {
    "ready": False,
    "trouble": Trouble(reason=NODE_NOT_READY, message="node n1 is not ready", since=5.0),
}


def _fleet(*pods: ObservedPod) -> RolloutPool:
    fleet = pool(JOB)
    return fleet.model_copy(update={"status": plan_pool(JOB, fleet, pods, now=9.0).status})


def _group(*pods: ObservedPod) -> Trainer:
    group = trainer(JOB, attempt=1)
    return group.model_copy(update={"status": plan_trainer(JOB, group, pods, now=9.0).status})


def _summary(plan: JobPlan) -> tuple[str, str]:
    condition = _condition(plan.status.conditions, ConditionType.SUCCEEDED)
    return condition.reason, condition.message


def _condition(conditions: tuple[Condition, ...], kind: ConditionType) -> Condition:
    found = find(conditions, kind)
    assert found is not None
    return found


def test_a_pool_says_what_keeps_its_pods_and_the_job_repeats_it() -> None:
    fleet = _fleet(worker(JOB, pool(JOB), 0, **FULL))
    assert fleet.status is not None
    assert "no node fits" in _condition(fleet.status.conditions, ConditionType.READY).message
    plan = plan_job(JOB, Observed(pools=[fleet]), now=9.0)
    reason, message = _summary(plan)
    assert reason == "WaitingForRollout"
    assert "no node fits" in message
    assert plan.status.last_error is not None
    assert plan.status.last_error.reason == "Unschedulable"
    well = plan_job(JOB.model_copy(update={"status": plan.status}), Observed(pools=[_fleet()]), now=10.0)
    assert well.status.last_error is None, "and no longer than it is so"


def test_a_trainer_says_what_keeps_its_ranks_and_the_job_repeats_it() -> None:
    group = _group(*(rank(JOB, trainer(JOB), number, **FULL) for number in range(2)))
    assert group.status is not None
    ready = _condition(group.status.conditions, ConditionType.READY)
    assert (ready.reason, ready.message) == (
        "RanksNotReady",
        "0 of 2 ranks train; job-solver-trainer-0: no node fits (1 more pod waits)",
    )
    reason, message = _summary(plan_job(JOB, Observed(trainers=[group]), now=9.0))
    assert reason == "WaitingForTrainer"
    assert "no node fits" in message


def test_ranks_are_counted_and_not_their_pods() -> None:
    of = job(trainer={"replicas": 2, "devicesPerReplica": 2})
    group = trainer(of, attempt=1)
    pods = [rank(of, group, 0), rank(of, group, 1, ready=False)]
    status = plan_trainer(of, group, pods, now=9.0).status
    assert "2 of 4 ranks train" in _condition(status.conditions, ConditionType.READY).message
    assert (status.replicas, status.ready_replicas) == (2, 1)


def test_ranks_behind_a_node_that_is_not_ready_are_not_said_to_be_idle() -> None:
    group = _group(*(rank(JOB, trainer(JOB), number, **LOST) for number in range(2)))
    assert group.status is not None
    ready = _condition(group.status.conditions, ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", NODE_NOT_READY)
    assert "node n1 is not ready" in ready.message
    assert "ranks train" not in ready.message


def test_a_refused_trainer_is_told_by_the_job() -> None:
    group = _group()
    assert group.status is not None
    refused = Condition(
        type="Accepted", status="False", reason="PodRefused", message="exceeded quota", last_transition_time=moment(1.0)
    )
    status = group.status.model_copy(update={"conditions": (*group.status.conditions, refused)})
    observed = Observed(trainers=[group.model_copy(update={"status": status})])
    reason, message = _summary(plan_job(JOB, observed, now=9.0))
    assert (reason, message) == ("WaitingForTrainer", "job-solver: PodRefused exceeded quota")


def test_a_dataflow_that_does_not_start_is_told_first() -> None:
    pod = ObservedPod(name=dataflow_pods(JOB)[0].name, **FULL)
    plan = plan_job(JOB, Observed(pods=[pod]), now=9.0)
    assert _summary(plan) == ("WaitingForDataflow", "job-dataflow-0: no node fits")
    assert plan.status.last_error is not None
