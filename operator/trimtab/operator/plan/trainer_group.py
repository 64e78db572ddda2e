"""Trainer ranks as a gang: one that fails takes the others with it, and all start again from the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.job import RLJob
from trimtab.api.policy import Policy
from trimtab.operator.plan.actions import Action, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job_pods import trainer_group, trainer_pods
from trimtab.operator.plan.pods import ObservedPod, Phase

_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 60.0


@dataclass(frozen=True)
class GroupPlan:
    actions: tuple[Action, ...]
    finished: bool
    failure: str | None = None
    """Why the group is given up, if it is."""


def plan_trainer_group(
    job: RLJob, policy: Policy, observed: Sequence[ObservedPod], *, attempt: int, max_restarts: int, now: float
) -> GroupPlan:
    """`attempt` is the newest one ever started, -1 if none was."""
    name = trainer_group(job, policy)
    members = [pod for pod in observed if pod.group == name]
    if attempt < 0:
        return GroupPlan(_start(job, policy, attempt=0), finished=False)
    failed = [pod for pod in members if pod.phase is Phase.FAILED]
    running = [pod for pod in members if pod.phase is Phase.RUNNING]
    if failed or (members and len(members) < policy.trainer.replicas):
        if running:
            reason = f"{failed[0].name} failed" if failed else "a rank is missing"
            return GroupPlan(tuple(StopPod(pod.name, reason) for pod in running if not pod.stopping), finished=False)
        if attempt >= max_restarts:
            why = failed[0].message if failed else "ranks vanished"
            return GroupPlan((), finished=False, failure=f"{name} failed {attempt + 1} times, lastly: {why}")
        ended = max((pod.finished_at or now for pod in members), default=now)
        if now - ended < min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** min(attempt, 10)):
            return GroupPlan((), finished=False)
        removed = tuple(RemovePod(pod.name) for pod in members)
        return GroupPlan((*removed, *_start(job, policy, attempt=attempt + 1)), finished=False)
    if not members:
        return GroupPlan(_start(job, policy, attempt=attempt + 1), finished=False)
    return GroupPlan((), finished=all(pod.phase is Phase.SUCCEEDED for pod in members))


def _start(job: RLJob, policy: Policy, *, attempt: int) -> tuple[Action, ...]:
    return tuple(StartPod(pod) for pod in trainer_pods(job, policy, attempt=attempt))
