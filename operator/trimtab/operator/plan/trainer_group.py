"""Trainer ranks as a gang: one that fails takes the others with it, and all start again from the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.failure import FailurePolicy
from trimtab.api.job import RLJob
from trimtab.api.policy import Policy
from trimtab.operator.plan.actions import Action, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job_pods import trainer_group, trainer_pods
from trimtab.operator.plan.pods import ObservedPod, Phase


@dataclass(frozen=True)
class GroupPlan:
    actions: tuple[Action, ...]
    finished: bool
    failure: str | None = None
    """Why the group is given up, if it is."""


def plan_trainer_group(
    job: RLJob, policy: Policy, observed: Sequence[ObservedPod], *, attempt: int, failures: int, now: float
) -> GroupPlan:
    """`attempt` is the newest one ever started, -1 if none was; `failures` counts those that failed by themselves."""
    name = trainer_group(job, policy)
    members = [pod for pod in observed if pod.group == name]
    if not members:
        return GroupPlan(_start(job, policy, attempt=attempt + 1), finished=False)
    if len(members) == policy.trainer.replicas and all(_running_or_done(pod) for pod in members):
        return GroupPlan((), finished=all(pod.phase is Phase.SUCCEEDED for pod in members))
    # The group is incomplete or on its way down: all of it has to be gone before it starts again.
    failed = [pod for pod in members if pod.phase is Phase.FAILED and not pod.stopping]
    running = [pod for pod in members if pod.phase is Phase.RUNNING]
    if running:
        reason = f"{failed[0].name} failed" if failed else "its group starts again"
        return GroupPlan(tuple(StopPod(pod.name, reason) for pod in running if not pod.stopping), finished=False)
    if failed and failures > job.spec.failure_policy.max_restarts:
        return GroupPlan((), finished=False, failure=f"{name} failed {failures} times, lastly: {failed[0].message}")
    ended = max(now if pod.finished_at is None else pod.finished_at for pod in members)
    if failed and now - ended < backoff_s(job.spec.failure_policy, failures=failures):
        return GroupPlan((), finished=False)
    removed = tuple(RemovePod(pod.name) for pod in members)
    return GroupPlan((*removed, *_start(job, policy, attempt=attempt + 1)), finished=False)


def backoff_s(policy: FailurePolicy, *, failures: int) -> float:
    """Before the restart that follows this many failures."""
    return min(policy.max_backoff_seconds, policy.backoff_seconds * 2.0 ** min(max(0, failures - 1), 30))


def _running_or_done(pod: ObservedPod) -> bool:
    """A rank that we stopped has done nothing but stop, whatever its exit code says."""
    return pod.phase is not Phase.FAILED and not pod.stopping


def _start(job: RLJob, policy: Policy, *, attempt: int) -> tuple[Action, ...]:
    return tuple(StartPod(pod) for pod in trainer_pods(job, policy, attempt=attempt))
