"""Carrying out a plan, the same for all three kinds: the status first, then the actions that may be done now.

The status is written before anything is done, so that a restart of the operator finds what it had decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.conditions import Condition, ConditionType, LastError
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.kube.resources import RLJOBS
from trimtab.operator import event_reasons as reasons
from trimtab.operator.conditions import find
from trimtab.operator.plan.actions import Action
from trimtab.operator.plan.last_error import newest
from trimtab.operator.plan.troubles import one_line
from trimtab.operator.pods.sites import remove_old_manifests
from trimtab.operator.reconcile.actions import Executor
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey, work_key
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.observation import works_for
from trimtab.operator.reconcile.refusals import refusal_of
from trimtab.operator.reconcile.status import is_current, with_acceptance, write_status
from trimtab.operator.reconcile.transitions import Status, transitions

_LONGEST_REFUSAL = 1024


async def carry_out(
    executor: Executor,
    status: Status,
    before: Status | None,
    actions: Sequence[Action],
    *,
    requeue_at: float | None,
    at_once: bool = False,
) -> Result:
    """`at_once`: all actions together, because a part of them makes no sense."""
    cluster, key = executor.cluster, work_key(executor.owner)
    now_due, held_until = cluster.objections.allowed(key, actions, now=cluster.clock())
    status = _with_refusal(status, key, cluster)
    fresh = await write_status(cluster, executor.owner, status, before=before)
    if fresh:
        for transition in transitions(before, status):
            cluster.events.record(executor.owner, transition.type, transition.reason, transition.message)
    if not actions:
        withdrawn = cluster.objections.withdraw(key)
        if executor.typed_job is not None:
            await remove_old_manifests(
                executor.pod_cluster, job=executor.typed_job, owner=executor.owner, typed=executor.typed
            )
        return Result(requeue_at=requeue_at, requeue=withdrawn)
    again = earliest(requeue_at, held_until)
    if not now_due:
        return Result(requeue_at=again)
    if not fresh and not await is_current(cluster, executor.owner):
        return Result(requeue=True)
    if executor.job is None and not await _job_is_absent(executor):
        return Result(requeue=True)
    outcome = await executor.do(now_due, at_once=at_once)
    known = cluster.objections.of(key)
    if outcome.objection is not None:
        retry_at = cluster.objections.record(key, outcome.objection, outcome.refused, now=cluster.clock())
        again = earliest(again, retry_at)
    elif held_until is None and not outcome.busy:
        cluster.objections.withdraw(key)
    return Result(
        requeue_at=again,
        requeue=outcome.left or cluster.objections.of(key) != known,
        objected=outcome.objection is not None,
        busy=outcome.busy,
    )


def accepted_conditions(
    cluster: Cluster, key: WorkKey, planned: Status, typed: RLJob | RolloutPool | Trainer, *, now: float
) -> tuple[Condition, ...]:
    """The planned conditions with Accepted among them: whether the server takes what the object asks for."""
    said = find(planned.conditions, ConditionType.ACCEPTED)
    if isinstance(typed, RLJob) and said is not None and said.status == "False":
        # Its plan has refused it. Plans of pools and trainers accept whatever they are given.
        return planned.conditions
    refusal = refusal_of(typed.spec)
    objection = cluster.objections.of(key) if refusal is None else Objection(reason="NotSupported", message=refusal)
    return with_acceptance(
        planned.conditions,
        before=() if typed.status is None else typed.status.conditions,
        objection=objection,
        generation=typed.metadata.generation,
        now=now,
    )


def earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)


def forgotten(cluster: Cluster, key: WorkKey) -> Result:
    """For an object that is gone."""
    cluster.objections.withdraw(key)
    return Result()


def _with_refusal(status: Status, key: WorkKey, cluster: Cluster) -> Status:
    """A status whose last error is why the API server refuses the pods, since when it does."""
    objection, accepted = cluster.objections.of(key), find(status.conditions, ConditionType.ACCEPTED)
    if objection is None or objection.reason != reasons.POD_REFUSED or accepted is None or accepted.status != "False":
        return status
    error = LastError(
        time=accepted.last_transition_time,
        reason=objection.reason,
        message=one_line(objection.message, limit=_LONGEST_REFUSAL),
    )
    return status.model_copy(update={"last_error": newest([status.last_error, error], None)})


async def _job_is_absent(executor: Executor) -> bool:
    """Pods are stopped because their job is gone. The server is asked before that is believed."""
    assert not isinstance(executor.typed, RLJob)
    name, namespace = executor.typed.spec.job_ref.name, executor.owner["metadata"]["namespace"]
    live = await executor.cluster.client.get_or_none(RLJOBS, name, namespace=namespace)
    if live is None or not works_for(executor.owner, live):
        return True
    executor.cluster.jobs.note(live)
    return False
