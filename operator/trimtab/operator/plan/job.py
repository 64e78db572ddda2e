"""The plan of a whole job: its dataflow, its pools and trainers, and what to say about it.

Pools and trainers have plans of their own. A job makes them, reads what became of them, and ends when they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.goals import Goals
from trimtab.api.job import RLJob, RLJobStatus
from trimtab.api.pool import RolloutPool
from trimtab.api.support import unsupported
from trimtab.api.trainer import Trainer
from trimtab.operator.conditions import Statement, find, moment, updated
from trimtab.operator.plan.actions import (
    Action,
    DeleteJob,
    DeletePool,
    PutPool,
    PutTrainer,
    RemovePod,
    ReplacePod,
    StartPod,
    StopPod,
)
from trimtab.operator.plan.children import made_by, pool_of, trainer_of
from trimtab.operator.plan.cover import planned_covers
from trimtab.operator.plan.job_pods import dataflow_pods, tracking_pods
from trimtab.operator.plan.last_error import MISCONFIGURED, error_to_tell, newest
from trimtab.operator.plan.lifecycle import delete_at, hopeless, rest_reason, verdict
from trimtab.operator.plan.pods import ObservedPod, PodPlan
from trimtab.operator.plan.progress import JobReport, largest, mean, policy_statuses, pool_statuses
from trimtab.operator.plan.trainer import COMPLETED, FAILED, outcome
from trimtab.operator.plan.troubles import NODE_NOT_READY, told


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The world as the executor sees it."""

    pools: Sequence[RolloutPool] = ()
    """Those that work for the job, made by hand or not."""
    trainers: Sequence[Trainer] = ()
    pods: Sequence[ObservedPod] = ()
    """Those of the dataflow."""
    tracking: Sequence[ObservedPod] | None = None
    """Those that write to trackers; None where the executor sees to trackers by itself."""
    report: JobReport = field(default_factory=JobReport)
    refusal: str | None = None
    """Why this executor cannot run the job as it is written, in a sentence with the fix."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    actions: tuple[Action, ...]
    status: RLJobStatus
    requeue_at: float | None = None


def plan_job(job: RLJob, observed: Observed, *, now: float) -> JobPlan:
    """Level-triggered: the same world gives the same plan, and a world that fits gives an empty one."""
    refused = _refusal(job, observed)
    end = None if refused else _end(job, observed)
    statements = _statements(job, observed, refused=refused, end=end)
    actions: tuple[Action, ...]
    if refused:
        actions = ()
    elif rest_reason(job) is not None or end is not None:
        actions = _wind_down(observed)
    else:
        actions = (*_children(job, observed, now=now), *_kept(dataflow_pods(job), observed.pods))
        if observed.tracking is not None:
            actions = (*actions, *_kept(tracking_pods(job), observed.tracking))
    delete = delete_at(job)
    if delete is not None and now >= delete and job.metadata.deletion_timestamp is None:
        # Besides, not instead: a job that goes before its pods have wound down still waits for them.
        actions = (*actions, DeleteJob())
    return JobPlan(
        actions=actions,
        status=_status(job, observed, statements, now=now),
        requeue_at=delete if delete is not None and now < delete else None,
    )


def _refusal(job: RLJob, observed: Observed) -> str | None:
    """Why the job is not accepted; None when it is."""
    beyond = unsupported(job.spec)
    return f"this version does not do {', '.join(beyond)}" if beyond else observed.refusal


def _end(job: RLJob, observed: Observed) -> Statement | None:
    """How the job ends, when that is decided now; None before, and once it is written down."""
    if verdict(job) is not None:
        return None
    for pod in observed.pods:
        if pod.misconfigured:
            return _failed(MISCONFIGURED, f"{pod.name}: {pod.message}")
    trainers = {trainer.spec.policy: trainer for trainer in observed.trainers}
    ends = [outcome(job, trainers[policy.name]) for policy in job.spec.learning if policy.name in trainers]
    for trainer in observed.trainers:
        if outcome(job, trainer) == FAILED and trainer.status is not None:
            said = find(trainer.status.conditions, ConditionType.READY)
            return _failed("TrainerFailed", f"{trainer.metadata.name}: {said.message if said else ''}")
    for pool in observed.pools:
        error = pool.status.last_error if pool.status else None
        if error is not None and error.reason == MISCONFIGURED:
            return _failed(MISCONFIGURED, f"{error.pod}: {error.message}")
    report = observed.report
    trained = bool(report.policies) or (job.status is not None and job.status.step > 0)
    if why := hopeless(job, report.given_up, any_completed=report.any_completed or trained):
        return _failed("GroupsFailed", why)
    if len(ends) == len(job.spec.learning) and all(end == COMPLETED for end in ends):
        return Statement(
            type=ConditionType.SUCCEEDED, holds=True, reason="PoliciesTrained", message="every policy is trained"
        )
    return None


def _failed(reason: str, message: str) -> Statement:
    return Statement(type=ConditionType.SUCCEEDED, holds=False, reason=reason, message=message)


def _children(job: RLJob, observed: Observed, *, now: float) -> list[Action]:
    """Those that are missing or differ from the manifest, and pools that it no longer has."""
    actions: list[Action] = []
    pools = {pool.metadata.name: pool for pool in observed.pools}
    trainers = {trainer.metadata.name: trainer for trainer in observed.trainers}
    covers = planned_covers(job, observed.pools, now=now)
    wanted = set()
    for asked in job.spec.pools:
        name = f"{job.metadata.name}-{asked.name}"
        made = pool_of(job, asked, pools.get(name), covers.get(name))
        wanted.add(made.metadata.name)
        if not _same(pools.get(made.metadata.name), made):
            actions.append(PutPool(made))
    for policy in job.spec.learning:
        trainer = trainer_of(job, policy)
        if not _same(trainers.get(trainer.metadata.name), trainer):
            actions.append(PutTrainer(trainer))
    for name, pool in pools.items():
        if name not in wanted and made_by(job, pool) and pool.metadata.deletion_timestamp is None:
            actions.append(DeletePool(name))
    return actions


def _same(present: RolloutPool | Trainer | None, wanted: RolloutPool | Trainer) -> bool:
    return (
        present is not None
        and present.spec == wanted.spec
        and wanted.metadata.annotations.items() <= present.metadata.annotations.items()
    )


def _kept(plans: Sequence[PodPlan], pods: Sequence[ObservedPod]) -> list[Action]:
    """Their containers are restarted in place, so one that has ended was stopped or taken away. A dataflow of which
    nothing is heard is replaced, unless its kubelet says that it knows: what the old one may still write the ledger
    refuses."""
    wanted = {pod.name: pod for pod in plans}
    actions: list[Action] = []
    for pod in pods:
        if pod.ended:
            actions.append(RemovePod(pod.name))
        elif pod.name in wanted and _is_lost(pod):
            reason = "nothing is heard of it; what it may still write is refused"
            actions.append(ReplacePod(pod.name, reason, wanted[pod.name], avoided_node=pod.node))
        elif pod.alive and (pod.name not in wanted or pod.revision != wanted[pod.name].revision):
            actions.append(StopPod(pod.name, "its part of the manifest has changed"))
    there = {pod.name for pod in pods if not pod.ended}
    return actions + [StartPod(plan) for name, plan in wanted.items() if name not in there]


def _is_lost(pod: ObservedPod) -> bool:
    """A kubelet that is there says of a pod whose process has ended that it is not ready, and starts it again."""
    if pod.trouble is not None and pod.trouble.reason == NODE_NOT_READY:
        return pod.fell_silent or pod.unheard
    return pod.fell_silent and pod.ready


def _wind_down(observed: Observed) -> tuple[Action, ...]:
    """The dataflow goes after the others: workers hand tasks back to it, and trainers acknowledge their last steps.
    Then nothing more is said, and what writes to trackers has its time to tell the rest."""
    others = any(pool.status is not None and pool.status.replicas for pool in observed.pools) or any(
        trainer.status is not None and trainer.status.replicas for trainer in observed.trainers
    )
    if others:
        return ()
    pods = [*observed.pods]
    if all(pod.ended for pod in observed.pods):
        pods += observed.tracking or ()
    stops: list[Action] = [StopPod(pod.name, "the job is at rest") for pod in pods if pod.alive]
    return (*stops, *(RemovePod(pod.name) for pod in pods if pod.ended))


def _statements(job: RLJob, observed: Observed, *, refused: str | None, end: Statement | None) -> list[Statement]:
    accepted = Statement(
        type=ConditionType.ACCEPTED,
        holds=not refused,
        reason="NotSupported" if refused else "Accepted",
        message=refused or "",
    )
    running = any(pod.alive for pod in observed.pods)
    suspended = Statement(
        type=ConditionType.SUSPENDED,
        holds=job.spec.suspend and not running,
        reason="Suspended" if job.spec.suspend else "Running",
        message="pods are being stopped" if job.spec.suspend and running else "",
    )
    if verdict(job) is not None:
        return [accepted, suspended]
    report = observed.report
    of_streams = [one.statement() for one in (report.room, report.durability) if one is not None]
    return [accepted, suspended, *of_streams, end or _progress(job, observed, refused=refused)]


def _progress(job: RLJob, observed: Observed, *, refused: str | None) -> Statement:
    """The summary of a job that has not ended: its reason says what the job is doing, or waits for."""

    def said(reason: str, message: str = "") -> Statement:
        return Statement(type=ConditionType.SUCCEEDED, holds=None, reason=reason, message=message)

    if refused:
        return said("NotAccepted", "see the condition Accepted")
    if job.spec.suspend:
        return said("Suspended")
    if observed.report.streams_refused is not None:
        return said("WaitingForStreams", observed.report.streams_refused)
    trouble = told(observed.pods)
    if trouble:
        return said("WaitingForDataflow", trouble)
    for trainer in observed.trainers:
        conditions = trainer.status.conditions if trainer.status else ()
        refusal = _refused(conditions)
        if refusal is not None:
            return said("WaitingForTrainer", f"{trainer.metadata.name}: {refusal}")
        ready = find(conditions, ConditionType.READY)
        if ready is not None and ready.status != "True" and outcome(job, trainer) != COMPLETED:
            return said("WaitingForTrainer", f"{trainer.metadata.name}: {ready.reason} {ready.message}".rstrip())
    idle = [pool for pool in observed.pools if not (pool.status and pool.status.ready_replicas)]
    if observed.pools and len(idle) == len(observed.pools):
        return said("WaitingForRollout", _why_idle(idle))
    if observed.report.room is not None and observed.report.room.shortage is not None:
        return said("WaitingForRoom", observed.report.room.shortage)
    if not observed.report.policies:
        return said("Starting")
    return said("Training", f"step {min(policy.step for policy in observed.report.policies.values())}")


def _reached(job: RLJob, summary: Condition | None) -> Goals | None:
    """What the job has succeeded in; None before, and when it goes on."""
    if summary is None or summary.status != "True":
        return None
    ended = verdict(job)
    return job.spec.goals if ended is None or job.status is None else job.status.goals


def _refused(conditions: Sequence[Condition]) -> str | None:
    """Why the API server does not take what a pool or trainer asks for; None when it does."""
    accepted = find(conditions, ConditionType.ACCEPTED)
    return f"{accepted.reason} {accepted.message}" if accepted is not None and accepted.status == "False" else None


def _why_idle(pools: Sequence[RolloutPool]) -> str:
    """What the first of them says that has something to say."""
    for pool in sorted(pools, key=lambda pool: pool.metadata.name):
        conditions = pool.status.conditions if pool.status else ()
        error = pool.status.last_error if pool.status else None
        ready = find(conditions, ConditionType.READY)
        why = _refused(conditions) or (ready.message if ready is not None and error is not None else None)
        if why is not None:
            return f"no rollout pod is ready yet; {pool.metadata.name}: {why}"
    return "no rollout pod is ready yet"


def _status(job: RLJob, observed: Observed, statements: Sequence[Statement], *, now: float) -> RLJobStatus:
    before = job.status or RLJobStatus()
    generation = job.metadata.generation
    conditions = updated(before.conditions, statements, generation=generation, now=now)
    summary = find(conditions, ConditionType.SUCCEEDED)
    ended = summary is not None and summary.status != "Unknown"
    policies = policy_statuses(job, before, observed.report)
    pools = pool_statuses(observed.pools)
    errors = [trainer.status.last_error for trainer in observed.trainers if trainer.status is not None]
    errors += [pool.status.last_error for pool in observed.pools if pool.status is not None]
    errors.append(error_to_tell([*observed.pods, *(observed.tracking or ())], None, now=now))
    trainers = [trainer.status for trainer in observed.trainers if trainer.status is not None]
    begun = bool(observed.pods) or any(trainer.attempt for trainer in trainers)
    return before.model_copy(
        update={
            "observed_generation": generation,
            "conditions": conditions,
            "start_time": before.start_time or (moment(now) if begun else None),
            "completion_time": (before.completion_time or moment(now)) if ended else None,
            "goals": _reached(job, summary),
            "step": min((policy.step for policy in policies), default=0),
            "reward": mean(policy.reward for policy in policies),
            "waiting_fraction": largest(policy.waiting_fraction for policy in policies),
            "staleness": largest(policy.staleness for policy in policies),
            "replicas": sum(pool.replicas for pool in pools),
            "ready_replicas": sum(pool.ready_replicas for pool in pools),
            "restarts": sum(trainer.restarts for trainer in trainers),
            "restarts_counted": sum(trainer.restarts_counted for trainer in trainers),
            "quarantined_tasks": max(before.quarantined_tasks, observed.report.quarantined_tasks),
            "anchored_anew": max(before.anchored_anew, observed.report.anchored_anew),
            "given_up_groups": max(before.given_up_groups, observed.report.given_up_groups),
            "policies": policies,
            "pools": pools,
            "settings": job.spec.live_settings,
            "last_error": newest(errors, before.last_error),
        }
    )
