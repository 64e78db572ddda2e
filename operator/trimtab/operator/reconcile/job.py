"""One reconcile of an RLJob: its plan with the autoscaler's decision in it, its watch on the bus, its credentials, and
its end when it was deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.api.job import RLJob
from trimtab.api.names import tracking_pod_name
from trimtab.fabric.bus.fleet_note import FleetNote
from trimtab.kube.resources import Key, Object, key_of
from trimtab.operator.plan.actions import PutPool, PutTrainer, ReplacePod, StartPod
from trimtab.operator.plan.fleet_note import fleet_note
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.lifecycle import rest_reason
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.reconcile.actions import Executor
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey
from trimtab.operator.reconcile.deletion import ensure_finalizer, finish_deletion, has_finalizer
from trimtab.operator.reconcile.execution import accepted_conditions, carry_out, earliest, forgotten
from trimtab.operator.reconcile.home_cluster import HomeCluster, renew_credentials
from trimtab.operator.reconcile.isolation import renew_network
from trimtab.operator.reconcile.job_buses import JobIdentity
from trimtab.operator.reconcile.observation import is_ours, pods_of, read_other, works_for
from trimtab.operator.reconcile.ownership import is_leaving
from trimtab.operator.reconcile.refusals import NO_TRACKING_IMAGE, refusal_of
from trimtab.operator.scaling.scaled_plan import ScaledPlan, with_scaling
from trimtab.operator.stream_limits import limits_refusal, stream_limits


async def reconcile_job(cluster: Cluster, key: WorkKey) -> Result:
    item = cluster.jobs.get(key.key)
    if item is None:
        cluster.watches.stop(key.key)
        return forgotten(cluster, key)
    job = cluster.jobs.read(item)
    if not is_ours(job):
        return Result()
    now, home = cluster.clock(), HomeCluster(cluster=cluster, owner=item)
    all_pods = pods_of(cluster, home, key.key)
    tracking = [pod for pod in all_pods if pod.name == tracking_pod_name(key.key.name)]
    pods = [pod for pod in all_pods if pod not in tracking]
    observed = _observed(cluster, key.key, item, job, pods, tracking)
    plan = plan_job(job, observed, now=now)
    if plan.status.completion_time is not None and (job.status is None or job.status.completion_time is None):
        # Its last steps may have been reported within the interval that is not over yet.
        cluster.watches.refresh(key.key)
        observed = _observed(cluster, key.key, item, job, pods, tracking)
        plan = plan_job(job, observed, now=now)
    uid = item["metadata"]["uid"]
    scaled = with_scaling(
        plan, job, observed, history=cluster.scaling.get(uid), reply=cluster.maintainers.reply(uid), now=now
    )
    plan = scaled.plan
    _follow(cluster, item, job, pods, fleet=fleet_note(job, observed.trainers, now=now))
    if any(isinstance(action, StartPod | ReplacePod | PutPool | PutTrainer) for action in plan.actions):
        item = await ensure_finalizer(cluster, item)
    if has_finalizer(item) and rest_reason(job) is None:
        await renew_credentials(cluster, item)
        await renew_network(cluster, item, job)
    conditions = accepted_conditions(cluster, key, plan.status, job, now=now)
    status = plan.status.model_copy(update={"conditions": conditions})
    executor = Executor(cluster=cluster, owner=item, typed=job, job=item, typed_job=job, pod_cluster=home)
    result = await carry_out(executor, status, job.status, plan.actions, requeue_at=plan.requeue_at)
    _remember_scaling(cluster, item, job, scaled, result)
    if is_leaving(item) and has_finalizer(item):
        waits = await finish_deletion(cluster, item, job)
        # What could not be done just now is still to be done: the deletion waits for nothing else.
        again = earliest(waits.requeue_at, result.requeue_at)
        return replace(waits, requeue_at=again, requeue=result.requeue, objected=result.objected, busy=result.busy)
    return result


def _observed(
    cluster: Cluster,
    key: Key,
    item: Object,
    job: RLJob,
    pods: Sequence[ObservedPod],
    tracking: Sequence[ObservedPod],
) -> Observed:
    return Observed(
        pools=[read_other(cluster.pools, pool) for pool in cluster.pools.under(key) if works_for(pool, item)],
        trainers=[read_other(cluster.trainers, one) for one in cluster.trainers.under(key) if works_for(one, item)],
        pods=pods,
        tracking=tracking,
        report=cluster.watches.snapshot(key).report,
        refusal=refusal_of(job.spec)
        or (NO_TRACKING_IMAGE if job.spec.tracking and cluster.settings.images.tracking is None else None)
        or limits_refusal(job.spec.streams, cluster.settings.streams, storage_bytes=cluster.account_bytes),
    )


def _remember_scaling(cluster: Cluster, item: Object, job: RLJob, scaled: ScaledPlan, result: Result) -> None:
    """What was decided counts once it is done. A reconcile that leaves something undone decides anew the next time."""
    if scaled.history is None or result.objected or result.busy or result.requeue:
        return
    uid, agent = item["metadata"]["uid"], job.spec.autoscaling.maintainer.agent
    cluster.scaling[uid] = scaled.history
    if scaled.question is not None and agent is not None:
        cluster.maintainers.ask(key_of(item), uid, scaled.question, agent)
    for event in scaled.events:
        cluster.events.record(item, "Normal", event.reason, event.message)


def _follow(
    cluster: Cluster, item: Object, job: RLJob, dataflow: Sequence[ObservedPod], *, fleet: FleetNote | None
) -> None:
    """Watch the job on the bus while a pod of it runs. Following makes the job's streams: pods that may not make them
    wait for that, whichever of them runs first."""
    key = key_of(item)
    talking = dataflow if cluster.mint is None else [observed_pod(pod) for pod in cluster.pods.under(key)]
    if rest_reason(job) is None and any(pod.phase is Phase.RUNNING for pod in talking):
        policies = tuple(policy.name for policy in job.spec.learning)
        cluster.watches.follow(
            JobIdentity.of(item),
            policies=policies,
            window=job.spec.autoscaling.window_steps,
            task_lease_s=job.spec.data.tasks.lease_seconds,
            limits=stream_limits(job.spec.streams, cluster.settings.streams, storage_bytes=cluster.account_bytes),
            dataflow=tuple((pod.name, pod.uid) for pod in dataflow if pod.scheduled and not pod.ended),
            fleet=fleet,
        )
    elif not any(not pod.ended for pod in dataflow):
        cluster.watches.stop(key)
