"""A job with an autoscaler, a trainer that starves, and what its plan makes of both."""

from __future__ import annotations

from typing import Any

from tests.support.operator.objects import pool, trainer
from trimtab.api import labels
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.fabric.wire.balance import BalanceReport, Branch, Instance, Volume
from trimtab.fabric.wire.member import State
from trimtab.operator.autoscale.agent.proposal import AgentReply
from trimtab.operator.autoscale.history import History
from trimtab.operator.conditions import find
from trimtab.operator.plan.actions import PutPool
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.job_pods import dataflow_pods
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.progress import JobReport
from trimtab.operator.scaling.scaled_plan import ScaledPlan, with_scaling

SCALING = {"mode": "Auto", "maxReplicas": 6, "minReplicas": 1, "maintainer": {"policy": "ThreeZone"}}


NOW = 10_000.0


def starving(of: RLJob, *, at: float = NOW, replicas: int = 2) -> BalanceReport:
    instances = tuple(
        Instance(member_id=f"w-{number}", pool="local", state=State.READY, samples_per_second=1.0)
        for number in range(replicas)
    )
    return BalanceReport(
        job=of.metadata.name, policy="solver", version=20, first_step=10, last_step=19, wall_seconds=100.0,
        wait_seconds=50.0, step_seconds=100.0, wait_fraction=0.5, produced=Volume(samples=100),
        accepted=Volume(samples=100), consumed=Volume(samples=100), instances=instances, maintainer="ThreeZone",
        branch=Branch.GROW, current=replicas, target=replicas * 2, at=at,
    )  # fmt: skip


def fleet(of: RLJob, *, annotated: int | None = None, **spec: Any) -> RolloutPool:
    made = pool(of, **spec)
    replicas = made.spec.replicas
    annotations = dict(made.metadata.annotations)
    if annotated is not None:
        annotations[labels.AUTOSCALED_REPLICAS] = str(annotated)
    return made.model_copy(
        update={
            "status": RolloutPoolStatus(replicas=replicas, ready_replicas=replicas),
            "metadata": made.metadata.model_copy(update={"annotations": annotations}),
        }
    )


def planned(
    of: RLJob,
    *pools: RolloutPool,
    history: History | None = None,
    reply: AgentReply | None = None,
    now: float = NOW,
    **heard: Any,
) -> ScaledPlan:
    (dataflow,) = dataflow_pods(of)
    pod = ObservedPod(name=dataflow.name, phase=Phase.RUNNING, revision=dataflow.revision)
    report = JobReport(**{"balance": {"solver": (starving(of),)}} | heard)
    observed = Observed(pools=pools, trainers=[trainer(of)], pods=[pod], report=report)
    return with_scaling(plan_job(of, observed, now=now), of, observed, history=history, reply=reply, now=now)


def sizes(plan: ScaledPlan) -> list[int]:
    return [action.pool.spec.replicas for action in plan.plan.actions if isinstance(action, PutPool)]


def reason(plan: ScaledPlan, kind: ConditionType) -> str:
    condition = find(plan.plan.status.conditions, kind)
    assert condition is not None
    return condition.reason
