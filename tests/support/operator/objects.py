"""Objects and pods for plans to look at."""

from __future__ import annotations

from typing import Any

from trimtab.api import names
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer, TrainerStatus
from trimtab.operator.plan.actions import (
    Action,
    DeleteJob,
    DeletePool,
    PutPool,
    PutTrainer,
    ReleasePod,
    RemovePod,
    ReplacePod,
    StartPod,
    StopPod,
)
from trimtab.operator.plan.children import pool_of, trainer_of
from trimtab.operator.plan.job_pods import rollout_pods, rollout_revision, trainer_pods
from trimtab.operator.plan.pods import ObservedPod, Phase, PodPlan


def pool(of: RLJob, **spec: Any) -> RolloutPool:
    made = pool_of(of, of.spec.pools[0], None)
    return made.model_copy(update={"spec": type(made.spec).model_validate(made.spec.model_dump() | spec)})


def trainer(of: RLJob, **status: Any) -> Trainer:
    return trainer_of(of, of.spec.policies[0]).model_copy(update={"status": TrainerStatus(**status)})


def rollout_pod(of: RLJob, fleet: RolloutPool, ordinal: int) -> PodPlan:
    (pod,) = rollout_pods(of, fleet, [ordinal], revision=rollout_revision(of, fleet))
    return pod


def worker(of: RLJob, fleet: RolloutPool, ordinal: int, **fields: Any) -> ObservedPod:
    """A pod of the pool with its present template, running and ready unless told otherwise."""
    return ObservedPod(
        name=names.rollout_pod_name(fleet.metadata.name, ordinal),
        **{
            "phase": Phase.RUNNING,
            "owner": fleet.metadata.name,
            "revision": rollout_revision(of, fleet),
            **fields,
        },
    )


def rank(of: RLJob, group: Trainer, number: int, phase: Phase = Phase.RUNNING, **fields: Any) -> ObservedPod:
    made = {
        "owner": group.metadata.name,
        "attempt": 1,
        "revision": trainer_pods(of, group, attempt=1)[0].revision,
        "finished_at": 0.0 if phase in (Phase.SUCCEEDED, Phase.FAILED) else None,
        "message": "boom" if phase is Phase.FAILED else "",
        **fields,
    }
    return ObservedPod(name=names.trainer_pod_name(group.metadata.name, number), phase=phase, **made)


def said(actions: tuple[Action, ...]) -> list[str]:
    """Actions in words, with names cut to what tells them apart."""
    return [_said(action) for action in actions]


def _said(action: Action) -> str:
    match action:
        case StartPod(pod=pod):
            return f"start {_short(pod.name)}" + (f" {pod.attempt}" if pod.gang else "")
        case ReleasePod(name=name):
            return f"release {_short(name)}"
        case StopPod(name=name):
            return f"stop {_short(name)}"
        case RemovePod(name=name):
            return f"remove {_short(name)}"
        case ReplacePod(name=name, avoided_node=node):
            return f"replace {_short(name)} of {node}"
        case PutPool(pool=pool):
            return f"put {pool.metadata.name}"
        case PutTrainer(trainer=trainer):
            return f"put {trainer.metadata.name}"
        case DeletePool(name=name):
            return f"delete {name}"
        case DeleteJob():
            return "delete the job"


def _short(name: str) -> str:
    return name.removeprefix("job-").replace("-rollout", "").replace("-trainer", "")
