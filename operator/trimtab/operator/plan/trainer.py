"""The plan of a trainer: its ranks are a gang. One that fails takes the others with it, and all start again from the
checkpoint, with the next attempt number.

What must survive a restart of the operator is in the status, which executors write before they act: the attempt that
runs, whether its ranks were ever let run, and which failures have been judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.conditions import ConditionType
from trimtab.api.goals import Goals, raised
from trimtab.api.job import RLJob
from trimtab.api.trainer import Trainer, TrainerStatus
from trimtab.operator.conditions import Statement, find, updated
from trimtab.operator.plan.actions import PodAction, ReleasePod, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job_pods import trainer_pods
from trimtab.operator.plan.last_error import error_to_tell, latest_error
from trimtab.operator.plan.lifecycle import rest_reason
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.restart_budget import Verdict, backoff_s, judge
from trimtab.operator.plan.troubles import NODE_NOT_READY, told

COMPLETED = "Completed"
FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class TrainerPlan:
    actions: tuple[PodAction, ...]
    status: TrainerStatus
    requeue_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """What to do with the group, and the word and sentence for it."""

    reason: str
    message: str = ""
    actions: tuple[PodAction, ...] = ()
    changes: dict[str, int | Goals] | None = None
    """Of the status, to be written before the actions are done."""
    requeue_at: float | None = None


def plan_trainer(job: RLJob | None, trainer: Trainer, pods: Sequence[ObservedPod], *, now: float) -> TrainerPlan:
    """`job` is None when there is none of the name that the trainer works for."""
    status = trainer.status or TrainerStatus()
    decision = _decide(job, trainer, status, pods, now=now)
    return TrainerPlan(
        actions=decision.actions,
        status=_status(trainer, status, decision, pods, now=now),
        requeue_at=decision.requeue_at,
    )


def outcome(job: RLJob, trainer: Trainer) -> str | None:
    """COMPLETED or FAILED when the trainer has ended, for good or until the job is to reach more."""
    ready = find(trainer.status.conditions, ConditionType.READY) if trainer.status else None
    if trainer.status is None or ready is None or ready.reason not in (COMPLETED, FAILED):
        return None
    goes_on = ready.reason == COMPLETED and raised(job.spec.goals, trainer.status.goals)
    return None if goes_on else ready.reason


def _decide(
    job: RLJob | None, trainer: Trainer, status: TrainerStatus, pods: Sequence[ObservedPod], *, now: float
) -> _Decision:
    if job is None:
        missing = f"there is no RLJob {trainer.spec.job_ref.name} in this namespace"
        return _Decision(reason="JobNotFound", message=missing, actions=_clear(pods, reason="its job is gone"))
    ended = outcome(job, trainer)
    if ended is not None:
        said = find(status.conditions, ConditionType.READY)
        # The last pods stay as long as the job, for their logs.
        leave = _clear if job.metadata.deletion_timestamp is not None else _stop
        return _Decision(reason=ended, message=said.message if said else "", actions=leave(pods, reason="it has ended"))
    if all(policy.name != trainer.spec.policy for policy in job.spec.learning):
        return _Decision(reason="PolicyNotFound", message=f"the job has no policy {trainer.spec.policy} that learns")
    rest = ("Suspended", "spec.suspend is true") if trainer.spec.suspend else rest_reason(job)
    if rest is not None:
        return _Decision(reason=rest[0], message=rest[1], actions=_clear(pods, reason=rest[1]))
    attempt = max([status.attempt, *(pod.attempt for pod in pods)])
    older = [pod for pod in pods if pod.attempt < attempt]
    if older:
        return _Decision(reason="Restarting", actions=_clear(older, reason="another attempt takes over"))
    if not pods:
        return _begin(job, trainer, status)
    return _continue(job, trainer, status, pods, now=now)


def _continue(
    job: RLJob, trainer: Trainer, status: TrainerStatus, pods: Sequence[ObservedPod], *, now: float
) -> _Decision:
    """A group of one attempt that is there, or was."""
    wanted = trainer_pods(job, trainer, attempt=pods[0].attempt)
    failed = [pod for pod in pods if pod.phase is Phase.FAILED and not pod.stopping]
    if failed and status.judged_attempt < failed[0].attempt:
        return _judge(job, status, pods, failed, now=now)
    whole = {pod.name for pod in pods} == {pod.name for pod in wanted}
    current = all(pod.revision == wanted[0].revision for pod in pods)
    if whole and current and not failed and not any(pod.stopping for pod in pods):
        if any(pod.gated for pod in pods):
            return _release(pods)
        if all(pod.phase is Phase.SUCCEEDED for pod in pods):
            if raised(job.spec.goals, status.goals):
                why = "the job is to reach more than when it began"
                return _Decision(reason="Restarting", message=why, actions=_clear(pods, reason=why))
            return _Decision(reason=COMPLETED, message="every rank has ended well", changes=_goals(job, status))
        return _watched(pods, devices=trainer.spec.devices_per_replica)
    if current and not failed and all(pod.gated and pod.alive for pod in pods):
        there = {pod.name for pod in pods}
        missing = tuple(StartPod(pod) for pod in wanted if pod.name not in there)
        return _Decision(reason="RanksNotReady", message="starting", actions=missing)
    # Down with what is left of it; when all have ended, they make room for the next attempt.
    why = _said_by(pods, now=now) if failed else "its group starts again"
    if any(not pod.ended for pod in pods):
        return _Decision(reason="Restarting", message=why, actions=_stop(pods, reason=why))
    if failed:
        ended = max(now if pod.finished_at is None else pod.finished_at for pod in pods)
        free = judge(job.spec.failure_policy, failed) is Verdict.RESTART_FREE
        seed = f"{trainer.metadata.namespace}/{trainer.metadata.name}/{pods[0].attempt}"
        wait = 0.0 if free else backoff_s(job.spec.failure_policy, failures=status.restarts_counted, seed=seed)
        if now < ended + wait:
            return _Decision(reason="BackingOff", message=why, requeue_at=ended + wait)
    return _Decision(reason="Restarting", message=why, actions=_clear(pods, reason=why))


def _watched(pods: Sequence[ObservedPod], *, devices: int) -> _Decision:
    """A whole group that has not ended: how many of its ranks train, and what keeps the others."""
    unready = [pod for pod in pods if not (pod.ready and pod.phase is Phase.RUNNING)]
    of_ranks = f"{(len(pods) - len(unready)) * devices} of {len(pods) * devices} ranks"
    count = f"{of_ranks} train"
    if not unready:
        return _Decision(reason="RanksReady", message=count)
    trouble = told(unready)
    if all(pod.trouble is not None and pod.trouble.reason == NODE_NOT_READY for pod in unready):
        # They are cut off from the cluster, not necessarily from one another.
        return _Decision(reason=NODE_NOT_READY, message=f"{of_ranks} are within sight; {trouble}")
    return _Decision(reason="RanksNotReady", message=count + (f"; {trouble}" if trouble else ""))


def _judge(
    job: RLJob, status: TrainerStatus, pods: Sequence[ObservedPod], failed: Sequence[ObservedPod], *, now: float
) -> _Decision:
    """The first judgement of a failed attempt: whether it counts, and whether it was one too many."""
    policy = job.spec.failure_policy
    verdict = judge(policy, failed)
    counted = status.restarts_counted + (verdict is not Verdict.RESTART_FREE)
    message = _said_by(pods, now=now)
    stops = _stop(pods, reason=f"{failed[0].name} failed")
    if verdict is Verdict.FAIL or counted > policy.max_restarts:
        tries = "" if verdict is Verdict.FAIL else f"failed {counted} times, lastly "
        return _Decision(reason=FAILED, message=tries + message, actions=stops)
    changes: dict[str, int | Goals] = {"judged_attempt": failed[0].attempt, "restarts_counted": counted}
    return _Decision(reason="Restarting", message=message, actions=stops, changes=changes)


def _said_by(pods: Sequence[ObservedPod], *, now: float) -> str:
    """The failure that brought the group down."""
    error = latest_error(pods, now=now)
    return "" if error is None else f"{error.pod}: {error.message}"


def _begin(job: RLJob, trainer: Trainer, status: TrainerStatus) -> _Decision:
    """A rank of an older attempt may still run out of sight, so a number is used once. One under which
    nothing has run is still good: a group whose pods are refused a thousand times has not been restarted once.
    """
    started = status.attempt if status.started_attempt is None else status.started_attempt
    attempt = status.attempt
    changes: dict[str, int | Goals] = {"goals": job.spec.goals}
    if started >= attempt:
        changes |= {
            "attempt": attempt + 1,
            "started_attempt": attempt,
            "restarts": status.restarts + (attempt > 0),
        }
        attempt += 1
    starts = tuple(StartPod(pod) for pod in trainer_pods(job, trainer, attempt=attempt))
    return _Decision(reason="RanksNotReady", message="starting", actions=starts, changes=changes)


def _goals(job: RLJob, status: TrainerStatus) -> dict[str, int | Goals]:
    """Of an attempt that ends; an operator that did not write them down may have begun it."""
    return {"goals": status.goals or job.spec.goals}


def _release(pods: Sequence[ObservedPod]) -> _Decision:
    """All are there. That they may run is written before the first one does."""
    actions = tuple(ReleasePod(pod.name) for pod in pods if pod.gated)
    changes: dict[str, int | Goals] = {"started_attempt": pods[0].attempt}
    return _Decision(reason="RanksNotReady", message="starting", actions=actions, changes=changes)


def _stop(pods: Sequence[ObservedPod], *, reason: str) -> tuple[StopPod, ...]:
    return tuple(StopPod(pod.name, reason) for pod in pods if pod.alive)


def _clear(pods: Sequence[ObservedPod], *, reason: str) -> tuple[PodAction, ...]:
    """Stop those that run; a rank that has ended stays until all have, so that the group is seen as one."""
    stops = _stop(pods, reason=reason)
    if stops or any(not pod.ended for pod in pods):
        return stops
    return tuple(RemovePod(pod.name) for pod in pods)


def _status(
    trainer: Trainer, status: TrainerStatus, decision: _Decision, pods: Sequence[ObservedPod], *, now: float
) -> TrainerStatus:
    generation = trainer.metadata.generation
    there = [pod for pod in pods if not pod.ended]
    ran = max((pod.attempt for pod in pods if not pod.gated), default=0)
    training = decision.reason == "RanksReady"
    final = decision.reason in (COMPLETED, FAILED)
    at_rest = not there and decision.reason in ("Suspended", "JobEnded", "JobDeleted")
    statements = [
        Statement(type=ConditionType.READY, holds=training, reason=decision.reason, message=decision.message),
        Statement(
            type=ConditionType.PROGRESSING,
            holds=not training and not final and not at_rest,
            reason=decision.reason,
            message=decision.message,
        ),
        Statement(
            type=ConditionType.SUSPENDED,
            holds=at_rest,
            reason=decision.reason if at_rest else "Running",
            message=decision.message if at_rest else "",
        ),
    ]
    return status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": updated(status.conditions, statements, generation=generation, now=now),
            "replicas": len(there),
            "ready_replicas": sum(pod.ready and pod.phase is Phase.RUNNING for pod in there),
            "started_attempt": ran if ran and ran >= status.attempt else status.started_attempt,
            "last_error": error_to_tell(pods, status.last_error, now=now),
            **(decision.changes or {}),
        }
    )
