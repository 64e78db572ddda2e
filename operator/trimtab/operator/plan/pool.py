"""The plan of a rollout pool: as many pods as asked for, all of the current template, and none stopped in haste.

Stopping a pod is draining it: its worker takes no more tasks, finishes or hands back what it has, and goes within the
grace period.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count as count_up
from itertools import islice
from statistics import median

from trimtab.api import labels, names
from trimtab.api.conditions import ConditionType
from trimtab.api.coverage import cannot_serve
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool, RolloutPoolStatus, Update
from trimtab.api.scalars import count_of
from trimtab.operator.conditions import Statement, updated, without
from trimtab.operator.plan.actions import PodAction, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job_pods import pool_label, rollout_pods, rollout_revision
from trimtab.operator.plan.last_error import error_to_tell
from trimtab.operator.plan.lifecycle import rest_reason
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.sandbox import sandboxed
from trimtab.operator.plan.troubles import told
from trimtab.operator.plan.victims import victims

# A pod that ends at once is not replaced at once: whatever killed it is probably still there.
_SHORTEST_LIFE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    actions: tuple[PodAction, ...]
    status: RolloutPoolStatus
    requeue_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Room:
    """While pods of an older template are there: `most` may live at once, and `fewest` must be ready."""

    most: int
    fewest: int


def plan_pool(job: RLJob | None, pool: RolloutPool, pods: Sequence[ObservedPod], *, now: float) -> PoolPlan:
    """`job` is None when there is none of the name that the pool works for."""
    rest = _rest_reason(job, pool)
    revision = "" if job is None else rollout_revision(job, pool)
    living = [pod for pod in pods if pod.alive]
    stops = _stops(pool, living, revision=revision, at_rest=rest is not None)
    leaving = {stop.name for stop in stops}
    kept = [pod for pod in living if pod.name not in leaving]
    ended = [pod for pod in pods if pod.ended]
    starts: list[StartPod] = []
    held_until = None
    if rest is None and job is not None:
        outdated = sum(pod.revision != revision for pod in kept)
        most = room(pool.spec.update, replicas=pool.spec.replicas).most if outdated else pool.spec.replicas
        held_until = _held_until(ended, now=now)
        if held_until is None:
            taken = [pod.name for pod in pods]
            free = free_ordinals(pool.metadata.name, taken, count=most - len(kept))
            starts = [StartPod(pod) for pod in rollout_pods(job, pool, free, revision=revision)]
    removals = [RemovePod(pod.name) for pod in ended] if held_until is None else []
    return PoolPlan(
        actions=(*removals, *stops, *starts),
        status=_status(pool, pods, revision=revision, rest=rest, has_sandbox=_has_sandbox(job), now=now),
        requeue_at=held_until,
    )


def _rest_reason(job: RLJob | None, pool: RolloutPool) -> tuple[str, str] | None:
    """Why the pool should have no pods: a word and a sentence."""
    if job is None:
        return "JobNotFound", f"there is no RLJob {pool.spec.job_ref.name} in this namespace"
    if pool.spec.suspend:
        return "Suspended", "spec.suspend is true"
    if why := cannot_serve(job.spec, pool.spec, name=pool_label(pool)):
        return "RolesNotServed", why
    return rest_reason(job)


def _stops(pool: RolloutPool, living: Sequence[ObservedPod], *, revision: str, at_rest: bool) -> list[StopPod]:
    if at_rest:
        return [StopPod(pod.name, "the pool is at rest") for pod in living]
    replicas = pool.spec.replicas
    outdated = [pod for pod in living if pod.revision != revision]
    bounds = room(pool.spec.update, replicas=replicas)
    most = bounds.most if outdated else replicas
    # Those of an older template would have to go anyway.
    named = frozenset(pool.metadata.annotations.get(labels.VICTIMS, "").split(","))
    surplus = victims(outdated, len(living) - most, named=named)
    current = [pod for pod in living if pod.revision == revision]
    surplus += victims(current, len(living) - most - len(surplus), named=named)
    stops = [StopPod(pod.name, "the pool has become smaller") for pod in surplus]
    gone = {pod.name for pod in surplus}
    ready = sum(pod.ready for pod in living if pod.name not in gone)
    # Also of those that are not ready only as many go as are sure to be spared: on a busy machine a pod that works may
    # miss a probe, and a moment later another.
    spared = len(living) - len(gone) - bounds.fewest - sum(not pod.ready for pod in current if pod.name not in gone)
    for pod in victims([pod for pod in outdated if pod.name not in gone], spared):
        if pod.ready and ready <= bounds.fewest:
            break
        ready -= pod.ready
        stops.append(StopPod(pod.name, "its template has changed"))
    return stops


def room(update: Update, *, replicas: int) -> Room:
    surge = count_of(update.max_surge, replicas, up=True)
    missing = count_of(update.max_unavailable, replicas, up=False)
    if surge == 0 and missing == 0:
        # 25 % of 3 pods rounds down to none, and no pod could ever be replaced.
        missing = 1
    return Room(most=replicas + surge, fewest=max(0, replicas - missing))


def free_ordinals(pool: str, taken: Collection[str], *, count: int) -> list[int]:
    """The lowest that no pod of the pool has. A pod that is on its way out still has its name."""
    in_use = set(taken)
    free = (number for number in count_up() if names.rollout_pod_name(pool, number) not in in_use)
    return list(islice(free, max(0, count)))


def _held_until(ended: Sequence[ObservedPod], *, now: float) -> float | None:
    """When those that ended too soon may be replaced; None when there are none."""
    until = [pod.created_at + _SHORTEST_LIFE_S for pod in ended if not pod.stopping and not pod.disrupted]
    latest = max(until, default=now)
    return latest if latest > now else None


def _has_sandbox(job: RLJob | None) -> bool:
    return job is not None and job.spec.workflow.sandbox is not None


def _status(
    pool: RolloutPool,
    pods: Sequence[ObservedPod],
    *,
    revision: str,
    rest: tuple[str, str] | None,
    has_sandbox: bool,
    now: float,
) -> RolloutPoolStatus:
    before = pool.status or RolloutPoolStatus()
    there = [pod for pod in pods if not pod.ended]
    living = [pod for pod in there if pod.alive]
    ready = [pod for pod in living if pod.ready and pod.phase is Phase.RUNNING]
    current = [pod for pod in living if pod.revision == revision]
    wanted = 0 if rest else pool.spec.replicas
    whole = len(ready) == wanted and len(current) == len(living) == wanted
    # The condition alone may be withdrawn again: a pod is lost when it also ends or is told to.
    preempted = {pod.uid for pod in pods if pod.disrupted and not pod.alive}
    statements = [
        _ready(rest, ready=len(ready), wanted=wanted, trouble=told(living)),
        Statement(
            type=ConditionType.PROGRESSING,
            holds=not whole,
            reason="Settled" if whole else "PodsChanging",
            message=f"{len(current)} of {wanted} pods are up to date, {len(there) - len(living)} drain",
        ),
        Statement(
            type=ConditionType.SUSPENDED,
            holds=rest is not None and not there,
            reason=rest[0] if rest else "Running",
            message=rest[1] if rest else "",
        ),
    ]
    if has_sandbox:
        statements.append(sandboxed(living))
    generation = pool.metadata.generation
    known = before.conditions if pool.spec.cluster is not None else without(before.conditions, ConditionType.REACHABLE)
    known = known if has_sandbox else without(known, ConditionType.SANDBOXED)
    return before.model_copy(
        update={
            "observed_generation": generation,
            "conditions": updated(known, statements, generation=generation, now=now),
            "replicas": len(there),
            "ready_replicas": len(ready),
            "draining_replicas": len(there) - len(living),
            "updated_replicas": len(current),
            "tokens_per_second": sum(pod.tokens_per_second for pod in living),
            "startup_seconds": _startup_s(ready) or before.startup_seconds,
            "preemptions": before.preemptions + len(preempted.difference(before.preempted)),
            "preempted": tuple(sorted(preempted)),
            "last_error": error_to_tell(pods, before.last_error, now=now),
        }
    )


def _startup_s(ready: Sequence[ObservedPod]) -> float | None:
    # Two clocks: the node's, which may be behind, and the server's.
    took = [max(0.0, pod.ready_at - pod.created_at) for pod in ready if pod.ready_at is not None]
    return round(median(took)) if took else None


def _ready(rest: tuple[str, str] | None, *, ready: int, wanted: int, trouble: str) -> Statement:
    if rest is not None:
        return Statement(type=ConditionType.READY, holds=False, reason=rest[0], message=rest[1])
    return Statement(
        type=ConditionType.READY,
        holds=ready >= wanted,
        reason="PodsReady" if ready >= wanted else "PodsNotReady",
        message=f"{ready} of {wanted} pods take tasks" + (f"; {trouble}" if trouble else ""),
    )
