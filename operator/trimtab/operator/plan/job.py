"""The plan of a whole job: what to start and stop now, and what to say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.api.job import RLJob
from trimtab.operator.plan.actions import Action, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job_pods import dataflow_pods, pool_pods, trainer_group
from trimtab.operator.plan.pods import ObservedPod, Phase, PodPlan
from trimtab.operator.plan.trainer_group import plan_trainer_group


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The world as the executor sees it."""

    pods: Sequence[ObservedPod] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    """By trainer group, the newest attempt ever started; those never started are absent."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """By trainer group, attempts that failed and were not stopped by us: what failurePolicy.maxRestarts bounds."""


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
    misconfigured = [pod for pod in observed.pods if pod.misconfigured]
    if misconfigured:
        pod = misconfigured[0]
        return Plan(actions=_stop_all(observed, reason="the job has failed"), failure=f"{pod.name}: {pod.message}")
    actions: list[Action] = []
    finished = []
    for policy in desired.spec.policies:
        group = plan_trainer_group(
            desired,
            policy,
            observed.pods,
            attempt=observed.attempts.get(trainer_group(desired, policy), -1),
            failures=observed.failures.get(trainer_group(desired, policy), 0),
            now=now,
        )
        if group.failure is not None:
            return Plan(actions=_stop_all(observed, reason="the job has failed"), failure=group.failure)
        actions += group.actions
        finished.append(group.finished)
    if all(finished):
        stopping = _stop_all(observed, reason="the job has succeeded")
        return Plan(actions=stopping, succeeded=not any(pod.phase is Phase.RUNNING for pod in observed.pods))
    wanted = {pod.name: pod for pod in dataflow_pods(desired)}
    for pool in desired.spec.pools:
        wanted |= {pod.name: pod for pod in pool_pods(desired, pool, replicas=pool.replicas)}
    return Plan(actions=(*actions, *_plan_single_pods(wanted, observed)))


def _plan_single_pods(wanted: Mapping[str, PodPlan], observed: Observed) -> Iterable[Action]:
    """Pods that live for themselves. Their containers are restarted in place, so one that has ended was stopped."""
    present = {pod.name for pod in observed.pods}
    for pod in observed.pods:
        if pod.group is not None:
            continue
        if pod.phase is not Phase.RUNNING:
            yield RemovePod(pod.name)
            present.discard(pod.name)
        elif pod.name not in wanted and not pod.stopping:
            yield StopPod(pod.name, "no longer wanted")
    for name, plan in wanted.items():
        if name not in present:
            yield StartPod(plan)


def _stop_all(observed: Observed, *, reason: str) -> tuple[Action, ...]:
    return tuple(StopPod(pod.name, reason) for pod in observed.pods if pod.phase is Phase.RUNNING and not pod.stopping)
