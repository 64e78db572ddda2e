"""Everything there is to say about a manifest before it runs: what is wrong with it, and what is legal and surprising.
`trimtab validate` prints it, and the admission webhook answers `kubectl apply` with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trimtab.api.autoscaling import Autoscaling
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.policy import Policy
from trimtab.api.pool import RolloutPool
from trimtab.api.support import unsupported
from trimtab.api.validation import Path, Problem, parse, problems

_UNSUPPORTED = "this version does not do it: remove it"
_ONLY_FOR_AUTOSCALING = ("scale_up", "scale_down")
_ONLY_FOR_LEARNING = ("algorithm", "trainer")
_STEPS = re.compile(r"[^.\[\]]+|\[\d+\]")


@dataclass(frozen=True, kw_only=True)
class Review:
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...] = ()
    """Each names the field, what it comes to, and what to write instead."""


def review(value: Any) -> Review:
    found = problems(value)
    if found:
        return Review(problems=tuple(found))
    resource = parse(value)
    if not isinstance(resource, RLJob):
        return Review(problems=())
    return Review(
        problems=tuple(Problem(_path(field), _UNSUPPORTED) for field in unsupported(resource.spec)),
        warnings=(*_idle_trainer(resource.spec), *_without_effect(resource.spec)),
    )


def scale_warnings(pool: RolloutPool, replicas: int, job: RLJob | None) -> list[str]:
    """Of a person who sets the replicas of a job's pool."""
    if job is not None and job.spec.autoscaling.mode == "Auto" and pool.spec.rollouts:
        name = job.metadata.name
        return [
            f"spec.replicas: the autoscaler of RLJob {name} sets it and will change it again; to keep {replicas}, set "
            f"spec.autoscaling.mode of RLJob {name} to DryRun or Off"
        ]
    most, fewest = pool.spec.max_replicas, pool.spec.min_replicas
    if most is not None and replicas > most:
        return [f"spec.replicas: {replicas} is above spec.maxReplicas and is brought back to {most}"]
    if replicas < fewest:
        return [f"spec.replicas: {replicas} is below spec.minReplicas and is brought back to {fewest}"]
    return []


def _idle_trainer(spec: RLJobSpec) -> Iterator[str]:
    every, number = max(
        (policy.trainer.publish.every_steps, n) for n, policy in enumerate(spec.policies) if not policy.frozen
    )
    if spec.data.max_staleness < every:
        yield (
            f"spec.data.maxStaleness: {spec.data.max_staleness} makes training synchronous: rollout waits for the "
            f"weights of every {every} steps (spec.policies[{number}].trainer.publish.everySteps) and the trainer for "
            f"all their samples; give {every + 1} or more to let both work at the same time"
        )


def _without_effect(spec: RLJobSpec) -> Iterator[str]:
    for number, policy in enumerate(spec.policies):
        for name in _ONLY_FOR_LEARNING if policy.frozen else ():
            field = Policy.model_fields[name]
            if getattr(policy, name) != field.get_default(call_default_factory=True):
                yield f"spec.policies[{number}].{field.alias}: has no effect on a frozen policy, which does not learn"
    if spec.autoscaling.mode != "Off":
        return
    for name in _ONLY_FOR_AUTOSCALING:
        field = Autoscaling.model_fields[name]
        if getattr(spec.autoscaling, name) != field.get_default(call_default_factory=True):
            yield f"spec.autoscaling.{field.alias}: has no effect while spec.autoscaling.mode is Off"
    if spec.autoscaling.maintainer.agent is not None:
        yield "spec.autoscaling.maintainer.agent: is not asked while spec.autoscaling.mode is Off"


def _path(field: str) -> Path:
    return tuple(int(step[1:-1]) if step.startswith("[") else step for step in _STEPS.findall(field))
