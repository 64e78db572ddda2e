"""What a reconcile reads beside its own object: the job that a pool or trainer works for, and the pods of an owner with
what is known of them from the bus.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.api.job import RLJob
from trimtab.fabric.bus.names import escape_token
from trimtab.kube.resources import Key, Object
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.pods.sites import PodCluster
from trimtab.operator.reconcile.cache import M, TypedCache, Unreadable
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.ownership import controller_of

_MANAGED_BY = "rl.trimtab.dev/operator"


class LeaveAlone(Exception):
    """The plan would need an object that this version cannot read, so nothing is changed: what runs, runs on."""


def is_ours(job: RLJob | None) -> bool:
    """False for a job that its manifest gives to another controller. What has no job is ours to clean up."""
    return job is None or job.spec.managed_by == _MANAGED_BY


def job_of(cluster: Cluster, item: Object, name: str) -> tuple[Object | None, RLJob | None]:
    """The job that a pool or trainer works for. One that a former job of the name has made does not work for this
    one."""
    job = cluster.jobs.get(Key(item["metadata"]["namespace"], name))
    if job is None or not works_for(item, job):
        return None, None
    return job, read_other(cluster.jobs, job)


def works_for(item: Object, job: Object) -> bool:
    controller = controller_of(item)
    return controller is None or controller["uid"] == job["metadata"]["uid"]


def read_other(cache: TypedCache[M], item: Object) -> M:
    """An object beside the one that is reconciled. Raises LeaveAlone."""
    try:
        return cache.read(item)
    except Unreadable as problem:
        raise LeaveAlone(f"{item['kind']} {item['metadata']['name']}: {problem}") from None


def pods_of(cluster: Cluster, pod_cluster: PodCluster, job: Key) -> list[ObservedPod]:
    """The pods of one owner, as its cluster and the job's members on the bus show them."""
    snapshot = cluster.watches.snapshot(job)
    return [
        replace(
            pod,
            suspect=pod.name in snapshot.report.silent,
            fell_silent=escape_token(pod.name) in snapshot.report.silences.ended,
            unheard=escape_token(pod.name) in snapshot.report.silences.unheard,
            sandbox=snapshot.sandboxes.get(pod.name),
            tokens_per_second=snapshot.tokens_per_second.get(pod.name, 0.0),
        )
        for pod in pod_cluster.observed_pods()
    ]
