"""The end of a deleted job: its pods drain and checkpoint, then what it has on the bus goes, then the job.

The finalizer is bounded: when pods or the bus take too long it goes anyway, and an event says what was left. Weights
and checkpoints in object storage are the user's and stay.
"""

from __future__ import annotations

from trimtab.api.job import RLJob
from trimtab.fabric.bus.errors import BusError
from trimtab.kube.errors import NotFound
from trimtab.kube.resources import RLJOBS, Key, Object, key_of
from trimtab.kube.timestamps import epoch
from trimtab.operator import event_reasons as reasons
from trimtab.operator.plan.job_pods import TRACKING_GRACE_S
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.reconcile.cluster import Cluster, Result
from trimtab.operator.reconcile.isolation import forget_network
from trimtab.operator.reconcile.job_buses import JobIdentity
from trimtab.operator.reconcile.placement import recorded_placement

FINALIZER = "rl.trimtab.dev/cleanup"
_REQUEUE_S = 2.0
_UNKNOWN_GRACE_S = 300.0


def has_finalizer(job: Object) -> bool:
    return FINALIZER in (job["metadata"].get("finalizers") or ())


async def ensure_finalizer(cluster: Cluster, job: Object) -> Object:
    """Before the first thing is made that it would clean up. Raises Conflict when the job has changed meanwhile."""
    if has_finalizer(job):
        return job
    return await _write_finalizers(cluster, job, [*(job["metadata"].get("finalizers") or ()), FINALIZER])


async def finish_deletion(cluster: Cluster, job: Object, typed: RLJob | None) -> Result:
    """Waits for the pods, erases the streams, and lets the job go."""
    now, key = cluster.clock(), key_of(job)
    bus_deadline = epoch(job["metadata"]["deletionTimestamp"]) + cluster.settings.deletion_deadline_s
    pods_deadline = bus_deadline + _longest_grace_s(typed)
    # One that has ended keeps its logs for people, and goes with its owner.
    pods = [pod for pod in cluster.pods.under(key) if not observed_pod(pod).ended]
    others = _pods_in_other_clusters(cluster, key)
    if (pods or others) and now < pods_deadline:
        return Result(requeue_at=pods_deadline)
    cluster.watches.stop(key)
    left = [f"{len(pods)} pods"] if pods else []
    if others:
        left.append(f"{others} pods in other clusters")
    try:
        await cluster.watches.erase(JobIdentity.of(job))
    except BusError as error:
        if now < bus_deadline:
            return Result(requeue_at=now + _REQUEUE_S)
        left.append(f"streams on the bus ({error})")
    if left:
        message = f"the deadline for cleaning up is over; left behind: {', '.join(left)}"
        cluster.events.record(job, "Warning", reasons.CLEANUP_INCOMPLETE, message)
    current = cluster.jobs.get(key) or job
    finalizers = [name for name in current["metadata"].get("finalizers") or () if name != FINALIZER]
    try:
        await _write_finalizers(cluster, current, finalizers)
    except NotFound:
        cluster.jobs.note_gone(current)
    cluster.credentials.pop(job["metadata"]["uid"], None)
    cluster.secrets_seen.pop(job["metadata"]["uid"], None)
    cluster.scaling.pop(job["metadata"]["uid"], None)
    cluster.maintainers.forget(job["metadata"]["uid"])
    forget_network(cluster, job["metadata"]["uid"])
    return Result()


def _pods_in_other_clusters(cluster: Cluster, job: Key) -> int:
    """As far as is known: a cluster that counts as lost has none."""
    pools = [pool for pool in cluster.pools.under(job) if recorded_placement(pool) is not None]
    return sum(int((pool.get("status") or {}).get("replicas") or 0) for pool in pools)


async def _write_finalizers(cluster: Cluster, job: Object, finalizers: list[str]) -> Object:
    metadata = job["metadata"]
    body = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
    written = await cluster.client.patch(RLJOBS, metadata["name"], body, namespace=metadata["namespace"])
    if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
        cluster.jobs.note_gone(job)
    else:
        cluster.jobs.note(written)
    return written


def _longest_grace_s(job: RLJob | None) -> float:
    if job is None:
        return _UNKNOWN_GRACE_S
    graces = [pool.grace_period_seconds for pool in job.spec.pools]
    graces += [policy.trainer.grace_period_seconds for policy in job.spec.learning]
    # It is told to go when the others have gone.
    return float(max(graces)) + (TRACKING_GRACE_S if job.spec.tracking else 0.0)
