"""One reconcile of a RolloutPool, wherever its pods are: this is the entry for every pool.

A pool whose pods are in another cluster is handed to `Cluster.remote`, which plans and carries out the same way, with
the other cluster in the place of this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api import labels
from trimtab.api.pool import RolloutPool
from trimtab.kube.resources import Key, Object, key_of
from trimtab.operator import event_reasons as reasons
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.plan.pool import PoolPlan, plan_pool
from trimtab.operator.reconcile.actions import Executor
from trimtab.operator.reconcile.cache import Unreadable
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey, work_key
from trimtab.operator.reconcile.execution import accepted_conditions, carry_out, forgotten
from trimtab.operator.reconcile.home_cluster import HomeCluster
from trimtab.operator.reconcile.observation import is_ours, job_of, pods_of
from trimtab.operator.reconcile.ownership import is_leaving
from trimtab.operator.reconcile.placement import (
    ANNOTATION,
    has_remote_finalizer,
    is_remote,
    placement_problem,
    strike_placement,
)
from trimtab.operator.reconcile.refusals import refusal_of


async def reconcile_pool(cluster: Cluster, key: WorkKey) -> Result:
    item = cluster.pools.get(key.key)
    problem = None if item is None else placement_problem(item)
    if item is not None and problem is not None:
        return await _misplaced(cluster, item, problem)
    if item is not None and is_remote(item):
        return await cluster.remote.reconcile(cluster, item)
    cluster.remote.note_home(key.key)
    if item is not None and is_leaving(item) and has_remote_finalizer(item):
        return await _misplaced(cluster, item, f"the annotation {ANNOTATION} was removed")
    if item is None or is_leaving(item):
        # Its pods go with it: the garbage collector stops them, and they drain.
        return forgotten(cluster, key)
    pool = cluster.pools.read(item)
    job, typed_job = job_of(cluster, item, pool.spec.job_ref.name)
    if not is_ours(typed_job):
        return Result()
    home = HomeCluster(cluster=cluster, owner=item)
    pods = pods_of(cluster, home, Key(key.namespace, pool.spec.job_ref.name))
    executor = Executor(cluster=cluster, owner=item, typed=pool, job=job, typed_job=typed_job, pod_cluster=home)
    return await carry_out_pool(executor, pool, pods, plan_pool(typed_job, pool, pods, now=cluster.clock()))


async def _misplaced(cluster: Cluster, item: Object, problem: str) -> Result:
    """Where its things are is not known, so nothing is made or stopped until the annotation is gone. A deleted pool is
    let go: what it has elsewhere is collected there while another pool of the namespace is in that cluster."""
    if not is_leaving(item):
        raise Unreadable(problem)
    cluster.remote.note_home(key_of(item))
    if has_remote_finalizer(item):
        message = f"what the pool has in another cluster may be left there: {problem}"
        cluster.events.record(item, "Warning", reasons.CLEANUP_INCOMPLETE, message)
        await strike_placement(cluster, item)
    return forgotten(cluster, work_key(item))


async def carry_out_pool(executor: Executor, pool: RolloutPool, pods: Sequence[ObservedPod], plan: PoolPlan) -> Result:
    """The plan carried out, at home or in another cluster."""
    cluster, key, now = executor.cluster, work_key(executor.owner), executor.cluster.clock()
    versions = cluster.watches.snapshot(Key(key.namespace, pool.spec.job_ref.name)).versions
    served = [versions[pod.name] for pod in pods if pod.ready and pod.name in versions]
    status = plan.status.model_copy(
        update={
            "version": min(served, default=plan.status.version),
            "selector": f"{labels.OWNER}={key.name},{labels.ROLE}=rollout",
            "conditions": accepted_conditions(cluster, key, plan.status, pool, now=now),
        }
    )
    actions = plan.actions if refusal_of(pool.spec) is None else ()
    return await carry_out(executor, status, pool.status, actions, requeue_at=plan.requeue_at)
