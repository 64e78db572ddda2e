"""The plan of a whole job: what to start and stop now, and what to say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.api.job import RLJob
from trimtab.operator.plan.actions import Action, StartPod, StopPod
from trimtab.operator.plan.job_pods import dataflow_pods, pool_pods, trainer_group
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.trainer_group import plan_trainer_group


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The world as the executor sees it."""

    pods: Sequence[ObservedPod] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    """By trainer group, the newest attempt ever started; those never started are absent."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    actions: tuple[Action, ...]
    succeeded: bool = False
    """Every policy's trainer has ended well and nothing runs any more."""
    failure: str | None = None


def plan(desired: RLJob, observed: Observed, *, now: float) -> Plan:
    """Level-triggered: the same world gives the same plan, and a world that fits gives an empty one."""
    if desired.spec.suspend:
        return Plan(actions=_stop_all(observed, reason="suspended"))
    actions: list[Action] = []
    finished = []
    for policy in desired.spec.policies:
        group = plan_trainer_group(
            desired,
            policy,
            observed.pods,
            attempt=observed.attempts.get(trainer_group(desired, policy), -1),
            max_restarts=desired.spec.failure_policy.max_restarts,
            now=now,
        )
        if group.failure is not None:
            return Plan(actions=_stop_all(observed, reason="the job has failed"), failure=group.failure)
        actions += group.actions
        finished.append(group.finished)
    if all(finished):
        stopping = _stop_all(observed, reason="the job has succeeded")
        return Plan(actions=stopping, succeeded=not any(pod.phase is Phase.RUNNING for pod in observed.pods))
    wanted = dataflow_pods(desired)
    for pool in desired.spec.pools:
        wanted += pool_pods(desired, pool, replicas=pool.replicas)
    present = {pod.name for pod in observed.pods}
    actions += [StartPod(pod) for pod in wanted if pod.name not in present]
    names = {pod.name for pod in wanted}
    actions += [
        StopPod(pod.name, "no longer wanted")
        for pod in observed.pods
        if pod.group is None and pod.name not in names and pod.phase is Phase.RUNNING and not pod.stopping
    ]
    return Plan(actions=tuple(actions))


def _stop_all(observed: Observed, *, reason: str) -> tuple[Action, ...]:
    return tuple(StopPod(pod.name, reason) for pod in observed.pods if pod.phase is Phase.RUNNING and not pod.stopping)
