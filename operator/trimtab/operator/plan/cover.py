"""Which pools of a job take over for those whose cluster is lost, and for how many pods.

With autoscaling Auto no pool covers: the autoscaler sees the missing throughput and decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api import names
from trimtab.api.job import RLJob
from trimtab.api.pool import JobPool, RolloutPool
from trimtab.api.scalars import MAX_REPLICAS
from trimtab.operator.plan.children import made_by, own_replicas, uncovered_replicas
from trimtab.operator.plan.reachability import is_lost, is_usable


def planned_covers(job: RLJob, pools: Sequence[RolloutPool], *, now: float) -> dict[str, dict[str, int]]:
    """By the name of the pool that grows. The same world gives the same covers, whatever is covered already."""
    if job.spec.autoscaling.mode == "Auto":
        return {}
    active = {
        pool.metadata.name: pool for pool in pools if pool.metadata.deletion_timestamp is None and not pool.spec.suspend
    }
    # The sizes of pools that were made by hand are left to people.
    able = [
        (asked, active[name])
        for asked in job.spec.pools
        if (name := names.pool_name(job.metadata.name, asked.name)) in active
        and made_by(job, active[name])
        and is_usable(active[name])
        # A pool of stages alone has engines for these, and for nothing else.
        and asked.rollouts
    ]
    room = {pool.metadata.name: _room(job, asked, pool) for asked, pool in able}
    covers: dict[str, dict[str, int]] = {}
    for name, missing in sorted(active.items()):
        need = uncovered_replicas(missing) if missing.spec.rollouts and is_lost(missing, now=now) else 0
        for pool in sorted((pool for _, pool in able), key=_preference):
            taken = min(need, room[pool.metadata.name])
            if taken > 0:
                covers.setdefault(pool.metadata.name, {})[name] = taken
                room[pool.metadata.name] -= taken
                need -= taken
    return covers


def _room(job: RLJob, asked: JobPool, pool: RolloutPool) -> int:
    """Pods it may have besides its own."""
    most = MAX_REPLICAS if asked.max_replicas is None else asked.max_replicas
    return most - own_replicas(job, asked, pool)


def _preference(pool: RolloutPool) -> tuple[int, float, bool, str]:
    cost = pool.spec.cost_per_hour
    return (
        -pool.spec.priority,
        float("inf") if cost is None else cost,
        pool.spec.cluster is not None,
        pool.metadata.name,
    )
