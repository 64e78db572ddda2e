"""Which pools of a job take over for those whose cluster is lost, and for how many pods. It is written down on the pool
that grows, so that exactly that is undone when the cluster is back.

With autoscaling Auto nobody covers: the autoscaler sees the missing throughput and decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trimtab.api.job import RLJob
from trimtab.api.model import GROUP
from trimtab.api.pool import RolloutPool
from trimtab.operator.plan.job_pods import served_policies
from trimtab.operator.plan.reachability import is_lost, is_usable

COVERS = f"{GROUP}/covers"
"""An annotation on a RolloutPool: for whom it has more pods than it was asked for, and how many."""

Cover = Mapping[str, int]
"""Pods by the name of the lost pool."""


def recorded_cover(pool: RolloutPool | None) -> dict[str, int]:
    """What was last written down; nothing where somebody has written something else."""
    if pool is None:
        return {}
    try:
        written = json.loads(pool.metadata.annotations.get(COVERS, "{}"))
    except ValueError:
        return {}
    if not isinstance(written, dict):
        return {}
    return {name: count for name, count in written.items() if isinstance(count, int) and count > 0}


def written_cover(cover: Cover) -> str:
    return json.dumps(dict(cover), sort_keys=True)


def own_size(pool: RolloutPool) -> int:
    """What it was asked for, without what it covers."""
    return max(pool.spec.min_replicas, pool.spec.replicas - sum(recorded_cover(pool).values()))


def planned_covers(job: RLJob, pools: Sequence[RolloutPool], *, now: float) -> dict[str, dict[str, int]]:
    """By the name of the pool that grows. The same world gives the same covers, whatever is covered already."""
    if job.spec.autoscaling.mode == "Auto":
        return {}
    active = [pool for pool in pools if pool.metadata.deletion_timestamp is None and not pool.spec.suspend]
    lost = [pool for pool in active if is_lost(pool, now=now)]
    room = {pool.metadata.name: _room(pool) for pool in active if is_usable(pool) and _is_made_by(job, pool)}
    covers: dict[str, dict[str, int]] = {}
    for missing in sorted(lost, key=lambda pool: pool.metadata.name):
        need = own_size(missing)
        able = [pool for pool in active if pool.metadata.name in room and _match(job, missing, pool) is not None]
        for pool in sorted(able, key=lambda pool: _preference(job, missing, pool)):
            name = pool.metadata.name
            taken = need if room[name] is None else min(need, room[name] or 0)
            if taken <= 0:
                continue
            covers.setdefault(name, {})[missing.metadata.name] = taken
            need -= taken
            left = room[name]
            room[name] = None if left is None else left - taken
    return covers


def _room(pool: RolloutPool) -> int | None:
    """Pods it may have besides its own; None for any number."""
    return None if pool.spec.max_replicas is None else max(0, pool.spec.max_replicas - own_size(pool))


def _match(job: RLJob, missing: RolloutPool, pool: RolloutPool) -> int | None:
    """How well the pool serves what the lost one served: 0 the same policies, 1 more, 2 some of them; None for none."""
    wanted = {policy.name for policy in served_policies(job, missing)}
    served = {policy.name for policy in served_policies(job, pool)}
    if served == wanted:
        return 0
    if served >= wanted:
        return 1
    return 2 if served & wanted else None


def _preference(job: RLJob, missing: RolloutPool, pool: RolloutPool) -> tuple[int, int, float, bool, str]:
    cost = pool.spec.cost_per_hour
    return (
        _match(job, missing, pool) or 0,
        -pool.spec.priority,
        float("inf") if cost is None else cost,
        pool.spec.cluster is not None,
        pool.metadata.name,
    )


def _is_made_by(job: RLJob, pool: RolloutPool) -> bool:
    """The sizes of pools that somebody made by hand are theirs."""
    return any(owner.uid == job.metadata.uid and owner.controller for owner in pool.metadata.owner_references)
