"""One reconcile of a pool that is, should be or has been in another cluster.

What is to be done is the plan of any pool. Only the cluster where it is done differs, nothing at all is done while that
cluster is away, and its end is bounded: a cluster that is away does not hold a deleted pool for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trimtab.api.conditions import LastError
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import CONFIG_MAPS, Key, Object, key_of
from trimtab.kube.timestamps import epoch
from trimtab.operator import event_reasons as reasons
from trimtab.operator.conditions import updated
from trimtab.operator.plan.actions import StartPod
from trimtab.operator.plan.lifecycle import rest_reason
from trimtab.operator.plan.pool import PoolPlan, plan_pool
from trimtab.operator.plan.reachability import (
    is_lost,
    lost_at,
    reachable,
    status_out_of_reach,
    status_while_connecting,
)
from trimtab.operator.reconcile.actions import Executor
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster, Result, work_key
from trimtab.operator.reconcile.execution import forgotten
from trimtab.operator.reconcile.observation import is_ours, job_of, pods_of
from trimtab.operator.reconcile.ownership import NameBusy, Objected, is_leaving
from trimtab.operator.reconcile.placement import (
    Placement,
    has_remote_finalizer,
    placements_of,
    record_placement,
    recorded_placement,
    strike_placement,
    wanted_placement,
)
from trimtab.operator.reconcile.pool import carry_out_pool
from trimtab.operator.reconcile.status import write_status
from trimtab.operator.reconcile.transitions import transitions
from trimtab.operator.remote.cluster import RemoteCluster
from trimtab.operator.remote.link import Connection, Link
from trimtab.operator.remote.links import Links
from trimtab.operator.remote.origin import Origin
from trimtab.operator.remote.sweep import remove_anchor


class RemotePoolReconciler:
    """What reconcile's RemotePools asks for, over links to the clusters."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def note_home(self, pool: Key) -> None:
        self._links.note_reach(pool, None)

    def listen(self, pools: ObjectCache, *, wake: Callable[[Key], None]) -> None:
        def wake_all(placement: Placement) -> None:
            for key in pools:
                item = pools.get(key)
                if item is not None and placement in placements_of(item):
                    wake(key)

        self._links.listen(wake_pool=wake, wake_all=wake_all)

    async def run(self, pools: ObjectCache) -> None:
        """Until cancelled: ends links that no pool needs."""

        def needed() -> set[Placement]:
            items = (pools.get(key) for key in pools)
            return {placement for item in items if item is not None for placement in placements_of(item)}

        await self._links.run(needed)

    async def reconcile(self, cluster: Cluster, item: Object) -> Result:
        recorded = recorded_placement(item)
        if is_leaving(item):
            if recorded is None and has_remote_finalizer(item):
                # The annotation was taken away. What the spec names is where its things are, as far as is known.
                recorded = wanted_placement(item)
            if recorded is None:
                return forgotten(cluster, work_key(item))
            deadline = _departure_deadline(cluster, item)
            return await self._depart(
                cluster, item, recorded, give_up=deadline is not None and cluster.clock() >= deadline
            )
        pool = cluster.pools.read(item)
        wanted = wanted_placement(item)
        if recorded is not None and recorded != wanted:
            return await self._move_out(cluster, item, pool, recorded)
        assert wanted is not None
        link = self._links.to(wanted)
        async with link.turns:
            connection = link.connection
            self._links.note_reach(key_of(item), connection is not None)
            if connection is None:
                return await _report_out_of_reach(cluster, item, pool, link)
            try:
                return await self._reconcile_there(cluster, item, pool, wanted, connection)
            except KubeError:
                link.suspect()
                raise

    async def _reconcile_there(
        self, cluster: Cluster, item: Object, pool: RolloutPool, placement: Placement, connection: Connection
    ) -> Result:
        job, typed_job = job_of(cluster, item, pool.spec.job_ref.name)
        if not is_ours(typed_job):
            return Result()
        now = cluster.clock()
        there = RemoteCluster(cluster, connection, self._origin_of(item), placement)
        pods = pods_of(cluster, there, Key(item["metadata"]["namespace"], pool.spec.job_ref.name))
        plan = plan_pool(typed_job, pool, pods, now=now)
        if any(isinstance(action, StartPod) for action in plan.actions):
            item = await record_placement(cluster, item, placement)
        if job is not None and typed_job is not None and rest_reason(typed_job) is None:
            await _renew_credentials(there, job)
        executor = Executor(cluster=cluster, owner=item, typed=pool, job=job, typed_job=typed_job, pod_cluster=there)
        return await carry_out_pool(executor, pool, pods, _with_reach(plan, pool, placement, now=now))

    async def _move_out(self, cluster: Cluster, item: Object, pool: RolloutPool, left: Placement) -> Result:
        """The pool belongs elsewhere by now. Where it was, nothing stays; a cluster that is away is waited for until it
        counts as lost."""
        link, lost = self._links.to(left), is_lost(pool, now=cluster.clock())
        if link.connection is None and not lost:
            return await _report_out_of_reach(cluster, item, pool, link)
        return await self._depart(cluster, item, left, give_up=lost)

    async def _depart(self, cluster: Cluster, item: Object, placement: Placement, *, give_up: bool) -> Result:
        """Deletes the pool's anchor there; the garbage collector drains and removes the rest. With `give_up` it is not
        waited for: an event says what is left, and it is collected if a pool of ours is in that cluster when it comes
        back."""
        origin, link = self._origin_of(item), self._links.to(placement)
        try:
            if link.connection is not None:
                await _remove_anchor(link.connection, origin, placement)
                await strike_placement(cluster, item)
                self.note_home(key_of(item))
                return Result()
        except KubeError:
            link.suspect()
            if not give_up:
                raise
        if not give_up:
            # Woken when the cluster is back.
            return Result(requeue_at=_departure_deadline(cluster, item))
        message = f"ConfigMap {origin.anchor_name} and all that it owns is left in {placement}, which cannot be reached"
        cluster.events.record(item, "Warning", reasons.CLEANUP_INCOMPLETE, message)
        await strike_placement(cluster, item)
        self.note_home(key_of(item))
        return Result()

    def _origin_of(self, item: Object) -> Origin:
        metadata = item["metadata"]
        return Origin(
            installation=self._links.installation,
            namespace=metadata["namespace"],
            job=item["spec"]["jobRef"]["name"],
            pool=metadata["name"],
            uid=metadata["uid"],
        )


def _departure_deadline(cluster: Cluster, item: Object) -> float | None:
    """Until when the deletion of a pool may wait for its cluster; None for a pool that stays."""
    deleted = item["metadata"].get("deletionTimestamp")
    return None if not deleted else epoch(deleted) + cluster.settings.deletion_deadline_s


async def _remove_anchor(connection: Connection, origin: Origin, placement: Placement) -> None:
    anchor = await connection.client.get_or_none(CONFIG_MAPS, origin.anchor_name, namespace=placement.namespace)
    if anchor is not None and origin.owns(anchor):
        await remove_anchor(connection.client, anchor)
        connection.config_maps.note_gone(anchor)


def _with_reach(plan: PoolPlan, pool: RolloutPool, placement: Placement, *, now: float) -> PoolPlan:
    """The plan with a status that says that the cluster is there, and in which one errors were."""
    conditions = updated(plan.status.conditions, [reachable()], generation=pool.metadata.generation, now=now)
    changes: dict[str, object] = {"conditions": conditions}
    error: LastError | None = plan.status.last_error
    if error is not None and error.pod is not None:
        changes["last_error"] = error.model_copy(update={"cluster": placement.secret})
    return replace(plan, status=plan.status.model_copy(update=changes))


async def _renew_credentials(there: RemoteCluster, job: Object) -> None:
    try:
        await there.renew_credentials(job)
    except (Objected, NameBusy):
        return  # the next start of a pod meets the same objection and puts it into the status


async def _report_out_of_reach(cluster: Cluster, item: Object, pool: RolloutPool, link: Link) -> Result:
    """No action of any kind: pods there go on without us, and what we do not see is not gone."""
    now, status = cluster.clock(), _status_without(pool, link, now=cluster.clock())
    if await write_status(cluster, item, status, before=pool.status):
        for transition in transitions(pool.status, status):
            cluster.events.record(item, transition.type, transition.reason, transition.message)
    at = lost_at(pool.model_copy(update={"status": status}))
    return Result(requeue_at=at if at is not None and at > now else None)


def _status_without(pool: RolloutPool, link: Link, *, now: float) -> RolloutPoolStatus:
    if link.outage is None:
        return status_while_connecting(pool, now=now)
    return status_out_of_reach(pool, reason=link.outage.reason, message=link.outage.message, now=now)
