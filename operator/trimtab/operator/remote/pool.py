"""One look at a pool that is, or was, in another cluster. What is to be done is the plan of any pool; only where it is
done differs, and that nothing at all is done while the cluster is away.
"""

from __future__ import annotations

from trimtab.api.conditions import LastError
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import Key, Object
from trimtab.operator.conditions import updated
from trimtab.operator.plan.actions import StartPod
from trimtab.operator.plan.finishing import rest_reason
from trimtab.operator.plan.pool import PoolPlan, plan_pool
from trimtab.operator.plan.reachability import (
    is_lost,
    lost_at,
    reachable,
    status_out_of_reach,
    status_while_connecting,
)
from trimtab.operator.reconcile.actions import Hand
from trimtab.operator.reconcile.cluster import Cluster, Turn, WorkKey
from trimtab.operator.reconcile.creation import NameBusy, Objected
from trimtab.operator.reconcile.job import OURS, forgotten, job_of, settle_pool, with_news
from trimtab.operator.reconcile.job import look_at_pool as look_at_home_pool
from trimtab.operator.reconcile.ownership import is_leaving
from trimtab.operator.reconcile.placement import Placement, placements_of, recorded_placement, wanted_placement
from trimtab.operator.reconcile.placement_record import record_placement
from trimtab.operator.reconcile.status import write_status
from trimtab.operator.reconcile.transitions import transitions
from trimtab.operator.remote.cluster import RemotePlace
from trimtab.operator.remote.departure import depart, departure_deadline, origin_of
from trimtab.operator.remote.link import Connection, Link


def is_elsewhere(item: Object | None) -> bool:
    """Whether a look at the pool may have to talk to another cluster."""
    return item is not None and bool(placements_of(item))


async def look_at_pool(cluster: Cluster, key: WorkKey) -> Turn:
    item = cluster.pools.get(key.key)
    if item is None or not is_elsewhere(item):
        cluster.links.note_reach(key.key, None)
        return await look_at_home_pool(cluster, key)
    recorded = recorded_placement(item)
    if is_leaving(item):
        if recorded is None:
            return forgotten(cluster, key)
        deadline = departure_deadline(cluster, item)
        return await depart(cluster, item, recorded, give_up=deadline is not None and cluster.clock() >= deadline)
    pool = cluster.pools.read(item)
    wanted = wanted_placement(item)
    if recorded is not None and recorded != wanted:
        return await _move_out(cluster, item, pool, recorded)
    assert wanted is not None
    link = cluster.links.to(wanted)
    async with link.turns:
        connection = link.connection
        cluster.links.note_reach(key.key, connection is not None)
        if connection is None:
            return await _say_out_of_reach(cluster, item, pool, link)
        try:
            return await _look_there(cluster, item, pool, wanted, connection)
        except KubeError:
            link.suspect()
            raise


async def _move_out(cluster: Cluster, item: Object, pool: RolloutPool, left: Placement) -> Turn:
    """The pool belongs elsewhere now. Where it was, nothing stays; a cluster that is away is waited for as long as
    anything is."""
    link, lost = cluster.links.to(left), is_lost(pool, now=cluster.clock())
    if link.connection is None and not lost:
        return await _say_out_of_reach(cluster, item, pool, link)
    return await depart(cluster, item, left, give_up=lost)


async def _look_there(
    cluster: Cluster, item: Object, pool: RolloutPool, placement: Placement, connection: Connection
) -> Turn:
    job, typed_job = job_of(cluster, item, pool.spec.job_ref.name)
    if typed_job is not None and typed_job.spec.managed_by != OURS:
        return Turn()
    now = cluster.clock()
    place = RemotePlace(cluster, connection, origin_of(cluster, item), placement)
    heard = cluster.reports.heard(Key(item["metadata"]["namespace"], pool.spec.job_ref.name))
    pods = [with_news(pod, heard) for pod in place.observed_pods()]
    plan = plan_pool(typed_job, pool, pods, now=now)
    if any(isinstance(action, StartPod) for action in plan.actions):
        item = await record_placement(cluster, item, placement)
    if job is not None and typed_job is not None and rest_reason(typed_job) is None:
        await _renew_credentials(place, job)
    hand = Hand(cluster=cluster, owner=item, typed=pool, job=job, typed_job=typed_job, elsewhere=place)
    return await settle_pool(hand, pool, pods, _with_reach(plan, pool, placement, now=now))


def _with_reach(plan: PoolPlan, pool: RolloutPool, placement: Placement, *, now: float) -> PoolPlan:
    """The plan with a status that says that the cluster is there, and in which one errors were."""
    conditions = updated(plan.status.conditions, [reachable()], generation=pool.metadata.generation, now=now)
    changes: dict[str, object] = {"conditions": conditions}
    error: LastError | None = plan.status.last_error
    if error is not None and error.pod is not None:
        changes["last_error"] = error.model_copy(update={"cluster": placement.secret})
    return PoolPlan(
        actions=plan.actions,
        status=plan.status.model_copy(update=changes),
        look_again_at=plan.look_again_at,
    )


async def _renew_credentials(place: RemotePlace, job: Object) -> None:
    try:
        await place.renew_credentials(job)
    except (Objected, NameBusy):
        return  # whoever needs them to start a pod objects, and says so in its status


async def _say_out_of_reach(cluster: Cluster, item: Object, pool: RolloutPool, link: Link) -> Turn:
    """No action of any kind: pods there go on without us, and what we do not see is not gone."""
    now, status = cluster.clock(), _status_without(pool, link, now=cluster.clock())
    if await write_status(cluster, item, status, before=pool.status):
        for transition in transitions(pool.status, status):
            cluster.events.record(item, transition.type, transition.reason, transition.message)
    at = lost_at(pool.model_copy(update={"status": status}))
    return Turn(look_again_at=at if at is not None and at > now else None)


def _status_without(pool: RolloutPool, link: Link, *, now: float) -> RolloutPoolStatus:
    if link.loss is None:
        return status_while_connecting(pool, now=now)
    return status_out_of_reach(pool, reason=link.loss.reason, message=link.loss.message, now=now)
