"""One look at an object: what there is, what the plan says, the status first, then the actions. A short story for each
of the three kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.api import labels
from trimtab.api.conditions import ConditionType, LastError
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.kube.resources import RLJOBS, Key, Object, key_of
from trimtab.operator import event_reasons as reasons
from trimtab.operator.conditions import find
from trimtab.operator.plan.actions import Action, PutPool, PutTrainer, StartPod
from trimtab.operator.plan.finishing import rest_reason
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.last_error import newest
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.pool import PoolPlan, plan_pool
from trimtab.operator.plan.scaling import ScaledPlan, with_scaling
from trimtab.operator.plan.trainer import plan_trainer
from trimtab.operator.plan.troubles import one_line
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.pods.sites import ensure_credentials, remove_old_manifests
from trimtab.operator.reconcile.actions import Hand
from trimtab.operator.reconcile.cache import M, TypedView, Unreadable
from trimtab.operator.reconcile.cluster import Cluster, Turn, WorkKey, work_key
from trimtab.operator.reconcile.creation import NameBusy, Objected
from trimtab.operator.reconcile.deletion import ensure_finalizer, finish_deletion, has_finalizer
from trimtab.operator.reconcile.job_watches import Heard
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.ownership import controller_of, is_leaving
from trimtab.operator.reconcile.refusals import refusal_of
from trimtab.operator.reconcile.status import (
    is_current,
    with_acceptance,
    write_status,
    write_unreadable,
)
from trimtab.operator.reconcile.transitions import Status, transitions

OURS = "rl.trimtab.dev/operator"
_LONGEST_REFUSAL = 1024


class LeaveAlone(Exception):
    """Something that the plan would need cannot be read by this version: what runs, runs on."""


async def look_at_pool(cluster: Cluster, key: WorkKey) -> Turn:
    item = cluster.pools.get(key.key)
    if item is None or is_leaving(item):
        # Its pods go with it: the garbage collector stops them, and they drain.
        return forgotten(cluster, key)
    pool = cluster.pools.read(item)
    job, typed_job = job_of(cluster, item, pool.spec.job_ref.name)
    if typed_job is not None and typed_job.spec.managed_by != OURS:
        return Turn()
    pods = _pods_of(cluster, item, pool.spec.job_ref.name)
    hand = Hand(cluster=cluster, owner=item, typed=pool, job=job, typed_job=typed_job)
    return await settle_pool(hand, pool, pods, plan_pool(typed_job, pool, pods, now=cluster.clock()))


async def settle_pool(hand: Hand, pool: RolloutPool, pods: Sequence[ObservedPod], plan: PoolPlan) -> Turn:
    """The plan carried out, wherever the pool's pods are."""
    cluster, key, now = hand.cluster, work_key(hand.owner), hand.cluster.clock()
    heard = cluster.reports.heard(Key(key.namespace, pool.spec.job_ref.name))
    served = [heard.versions[pod.name] for pod in pods if pod.ready and pod.name in heard.versions]
    status = plan.status.model_copy(
        update={
            "version": min(served, default=plan.status.version),
            "selector": f"{labels.OWNER}={key.name},{labels.ROLE}=rollout",
            "conditions": _conditions(cluster, key, plan.status, pool, now=now),
        }
    )
    actions = plan.actions if refusal_of(pool.spec) is None else ()
    return await _carry_out(hand, status, pool.status, actions, look_again_at=plan.look_again_at)


async def look_at_trainer(cluster: Cluster, key: WorkKey) -> Turn:
    item = cluster.trainers.get(key.key)
    if item is None or is_leaving(item):
        return forgotten(cluster, key)
    trainer = cluster.trainers.read(item)
    job, typed_job = job_of(cluster, item, trainer.spec.job_ref.name)
    if typed_job is not None and typed_job.spec.managed_by != OURS:
        return Turn()
    now = cluster.clock()
    plan = plan_trainer(typed_job, trainer, _pods_of(cluster, item, trainer.spec.job_ref.name), now=now)
    status = plan.status.model_copy(
        update={
            **_progress_of(cluster, trainer),
            "conditions": _conditions(cluster, key, plan.status, trainer, now=now),
        }
    )
    hand = Hand(cluster=cluster, owner=item, typed=trainer, job=job, typed_job=typed_job)
    actions = plan.actions if refusal_of(trainer.spec) is None else ()
    # A gang that is started in part would be taken down again.
    return await _carry_out(hand, status, trainer.status, actions, look_again_at=plan.look_again_at, at_once=True)


async def look_at_job(cluster: Cluster, key: WorkKey) -> Turn:
    item = cluster.jobs.get(key.key)
    if item is None:
        cluster.reports.stop(key.key)
        return forgotten(cluster, key)
    job = cluster.jobs.read(item)
    if job.spec.managed_by != OURS:
        return Turn()
    now = cluster.clock()
    pods = _pods_of(cluster, item, key.name)
    observed = _observed(cluster, key.key, item, job, pods)
    plan = plan_job(job, observed, now=now)
    if plan.status.completion_time is not None and (job.status is None or job.status.completion_time is None):
        cluster.reports.look_now(key.key)
        observed = _observed(cluster, key.key, item, job, pods)
        plan = plan_job(job, observed, now=now)
    uid = item["metadata"]["uid"]
    scaled = with_scaling(
        plan, job, observed, history=cluster.scaling.get(uid), answer=cluster.agents.answer(uid), now=now
    )
    plan = scaled.plan
    _follow(cluster, key.key, job, pods)
    if any(isinstance(action, StartPod | PutPool | PutTrainer) for action in plan.actions):
        item = await ensure_finalizer(cluster, item)
    if has_finalizer(item) and rest_reason(job) is None:
        await _renew_credentials(cluster, item)
    status = plan.status.model_copy(update={"conditions": _conditions(cluster, key, plan.status, job, now=now)})
    hand = Hand(cluster=cluster, owner=item, typed=job, job=item, typed_job=job)
    turn = await _carry_out(hand, status, job.status, plan.actions, look_again_at=plan.look_again_at)
    _remember_scaling(cluster, item, job, scaled, turn)
    if is_leaving(item) and has_finalizer(item):
        waits = await finish_deletion(cluster, item, job)
        # What could not be done just now is still to be done: the deletion waits for nothing else.
        again = _earliest(waits.look_again_at, turn.look_again_at)
        return replace(waits, look_again_at=again, more=turn.more, objected=turn.objected, busy=turn.busy)
    return turn


async def say_unreadable(cluster: Cluster, key: WorkKey, problem: str) -> Turn:
    """An object that this version cannot read is told so, and otherwise left alone."""
    item = cluster.view_of(key.kind).get(key.key)
    if item is None:
        return Turn()
    if is_leaving(item) and has_finalizer(item):
        return await finish_deletion(cluster, item, None)
    message = f"this version of the operator cannot read the object: {problem}"
    await write_unreadable(cluster, item, message, now=cluster.clock())
    return Turn()


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


async def _carry_out(
    hand: Hand,
    status: Status,
    before: Status | None,
    actions: Sequence[Action],
    *,
    look_again_at: float | None,
    at_once: bool = False,
) -> Turn:
    cluster, key = hand.cluster, work_key(hand.owner)
    now_due, held_until = cluster.objections.allowed(key, actions, now=cluster.clock())
    status = _with_refusal(status, key, cluster)
    fresh = await write_status(cluster, hand.owner, status, before=before)
    if fresh:
        for transition in transitions(before, status):
            cluster.events.record(hand.owner, transition.type, transition.reason, transition.message)
    if not actions:
        withdrawn = cluster.objections.withdraw(key)
        if hand.typed_job is not None:
            await remove_old_manifests(hand.place, job=hand.typed_job, owner=hand.owner, typed=hand.typed)
        return Turn(look_again_at=look_again_at, more=withdrawn)
    again = _earliest(look_again_at, held_until)
    if not now_due:
        return Turn(look_again_at=again)
    if not fresh and not await is_current(cluster, hand.owner):
        return Turn(more=True)
    if hand.job is None and not await _is_absent(hand):
        return Turn(more=True)
    outcome = await hand.do(now_due, at_once=at_once)
    known = cluster.objections.of(key)
    if outcome.objection is not None:
        retry_at = cluster.objections.record(key, outcome.objection, outcome.refused, now=cluster.clock())
        again = _earliest(again, retry_at)
    elif held_until is None and not outcome.busy:
        cluster.objections.withdraw(key)
    return Turn(
        look_again_at=again,
        more=outcome.left or cluster.objections.of(key) != known,
        objected=outcome.objection is not None,
        busy=outcome.busy,
    )


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)


async def _is_absent(hand: Hand) -> bool:
    """Pods are stopped because their job is gone: that had better be true."""
    assert not isinstance(hand.typed, RLJob)
    name, namespace = hand.typed.spec.job_ref.name, hand.owner["metadata"]["namespace"]
    live = await hand.cluster.client.get_or_none(RLJOBS, name, namespace=namespace)
    if live is None or not _works_for(hand.owner, live):
        return True
    hand.cluster.jobs.note(live)
    return False


def _observed(cluster: Cluster, key: Key, item: Object, job: RLJob, pods: Sequence[ObservedPod]) -> Observed:
    return Observed(
        pools=[_read(cluster.pools, pool) for pool in cluster.pools.under(key) if _works_for(pool, item)],
        trainers=[_read(cluster.trainers, one) for one in cluster.trainers.under(key) if _works_for(one, item)],
        pods=pods,
        report=cluster.reports.heard(key).report,
        refusal=refusal_of(job.spec),
    )


def job_of(cluster: Cluster, item: Object, name: str) -> tuple[Object | None, RLJob | None]:
    """The job that a pool or trainer works for. One that a former job of the name has made does not work for this
    one."""
    job = cluster.jobs.get(Key(item["metadata"]["namespace"], name))
    if job is None or not _works_for(item, job):
        return None, None
    return job, _read(cluster.jobs, job)


def _read(view: TypedView[M], item: Object) -> M:
    """An object beside the one that is looked at."""
    try:
        return view.read(item)
    except Unreadable as problem:
        raise LeaveAlone(f"{item['kind']} {item['metadata']['name']}: {problem}") from None


def _works_for(item: Object, job: Object) -> bool:
    controller = controller_of(item)
    return controller is None or controller["uid"] == job["metadata"]["uid"]


def _pods_of(cluster: Cluster, owner: Object, job: str) -> list[ObservedPod]:
    heard = cluster.reports.heard(Key(owner["metadata"]["namespace"], job))
    return [with_news(observed_pod(pod), heard) for pod in cluster.pods.under(owner["metadata"]["uid"])]


def with_news(pod: ObservedPod, heard: Heard) -> ObservedPod:
    """The pod with what the bus has heard of it."""
    rate = heard.tokens_per_second.get(pod.name, 0.0)
    return replace(pod, suspect=pod.name in heard.report.silent, tokens_per_second=rate)


def _conditions(
    cluster: Cluster,
    key: WorkKey,
    planned: Status,
    typed: RLJob | RolloutPool | Trainer,
    *,
    now: float,
) -> object:
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


def _progress_of(cluster: Cluster, trainer: Trainer) -> dict[str, object]:
    """What the trainer itself reports, as far as it has been heard."""
    job = Key(trainer.metadata.namespace or "", trainer.spec.job_ref.name)
    heard = cluster.reports.heard(job).report.policies.get(trainer.spec.policy)
    if heard is None:
        return {}
    return {
        "step": heard.step,
        "version": heard.version,
        "reward": heard.reward,
        "waiting_fraction": heard.waiting_fraction,
        "staleness": heard.staleness,
        "tokens_per_second": heard.tokens_per_second,
        "skipped_steps": heard.skipped_steps,
        "checkpoint_step": heard.checkpoint_step,
    }


def _remember_scaling(cluster: Cluster, item: Object, job: RLJob, scaled: ScaledPlan, turn: Turn) -> None:
    """What was decided counts once it is done. A turn that leaves something undone decides anew the next time."""
    if scaled.history is None or turn.objected or turn.busy or turn.more:
        return
    uid, agent = item["metadata"]["uid"], job.spec.autoscaling.maintainer.agent
    cluster.scaling[uid] = scaled.history
    if scaled.question is not None and agent is not None:
        cluster.agents.put(key_of(item), uid, scaled.question, agent)
    for event in scaled.events:
        cluster.events.record(item, "Normal", event.reason, event.message)


def _follow(cluster: Cluster, key: Key, job: RLJob, dataflow: Sequence[ObservedPod]) -> None:
    """On the bus, while there is somebody to hear. Following makes the job's streams: pods that may not make them wait
    for that, whichever of them runs first."""
    heard = dataflow if cluster.mint is None else [observed_pod(pod) for pod in cluster.pods.under(key)]
    if rest_reason(job) is None and any(pod.phase is Phase.RUNNING for pod in heard):
        policies = tuple(policy.name for policy in job.spec.policies)
        cluster.reports.follow(
            key,
            policies=policies,
            window=job.spec.autoscaling.window_steps,
            task_lease_s=job.spec.data.tasks.lease_seconds,
        )
    elif not any(not pod.ended for pod in dataflow):
        cluster.reports.stop(key)


async def _renew_credentials(cluster: Cluster, job: Object) -> None:
    """An operator that was started with others tells the jobs that run already."""
    try:
        await ensure_credentials(cluster, job)
    except (Objected, NameBusy):
        return  # whoever needs them to start a pod objects, and says so in its status


def forgotten(cluster: Cluster, key: WorkKey) -> Turn:
    cluster.objections.withdraw(key)
    return Turn()
