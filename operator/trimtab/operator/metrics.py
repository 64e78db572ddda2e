"""What the operator says to Prometheus: of itself, and what the stored statuses of jobs, pools and trainers say in
numbers, for those who watch many jobs at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trimtab.api.conditions import ConditionType
from trimtab.fabric.metrics import Metrics
from trimtab.kube.resources import Object

_POOL_AT_WORK = ("PodsReady", "PodsNotReady")
_TRAINER_AT_WORK = ("RanksReady", "RanksNotReady", "Restarting", "BackingOff")
_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    wanted: int
    ready: int


@dataclass(frozen=True, kw_only=True)
class Scaling:
    recommended: int
    bounded: int


class OperatorMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._duration = metrics.histogram(
            "operator_reconcile_seconds", "Time of one reconcile of an object.", ("kind", "result"), buckets=_SECONDS
        )
        self.queue_depth = metrics.gauge("operator_queue_depth", "Objects that wait to be reconciled.")
        self.queue_age = metrics.gauge(
            "operator_queue_age_seconds", "How long the object at the head of the queue has waited to be reconciled."
        )
        self.oldest_start = metrics.gauge(
            "operator_reconcile_start_seconds",
            "Unix time at which the longest reconcile now under way began, 0 when there is none: alert when it is old.",
        )
        self._requests = metrics.counter(
            "operator_api_requests", "Answers of the API server.", ("verb", "resource", "code")
        )
        self._reviews = metrics.counter(
            "operator_admission_reviews", "Answers to the API server about objects to be written.", ("kind", "result")
        )
        self.leader = metrics.gauge("operator_leader", "1 while this operator holds the lease.")
        self.watched_jobs = metrics.gauge("operator_watched_jobs", "Jobs that are followed on the bus.")
        self._remote_reachable = metrics.gauge(
            "operator_remote_reachable",
            "1 while the cluster of a pool that is elsewhere can be reached.",
            ("namespace", "pool"),
        )
        self._pool_replicas = metrics.gauge(
            "operator_pool_replicas", "Pods that a pool should have now; 0 while it is at rest.", ("namespace", "pool")
        )
        self._pool_ready = metrics.gauge(
            "operator_pool_ready_replicas", "Pods of a pool that take tasks.", ("namespace", "pool")
        )
        self._recommended = metrics.gauge(
            "operator_recommended_replicas",
            "Rollout replicas that a job's maintainer wants, before bounds; absent with autoscaling off.",
            ("namespace", "rljob"),
        )
        self._bounded = metrics.gauge(
            "operator_bounded_replicas",
            "Rollout replicas that are left of that; carried out in mode Auto.",
            ("namespace", "rljob"),
        )
        self._without_room = metrics.gauge(
            "operator_job_without_room",
            "1 while a job's storage is nearly full, and no new tasks are admitted; absent where that is not known.",
            ("namespace", "rljob"),
        )
        self._trainer_steps = metrics.gauge(
            "operator_trainer_steps",
            "Steps that a trainer has made, as last heard; absent while it is at rest or has ended.",
            ("namespace", "trainer"),
        )
        build = metrics.gauge("operator_build_info", "Always 1.", ("version",))
        build.labels(version=_version()).set(1)

    def request(self, verb: str, resource: str, code: int) -> None:
        self._requests.labels(verb=verb, resource=resource, code=str(code)).inc()

    def reviewed(self, kind: str, result: str) -> None:
        """From any thread."""
        self._reviews.labels(kind, result).inc()

    def reconciled(self, kind: str, *, result: str, seconds: float) -> None:
        self._duration.labels(kind=kind, result=result).observe(seconds)

    def remote_reachable(self, namespace: str, pool: str, reachable: bool | None) -> None:
        """None for a pool that is gone, or at home."""
        if reachable is not None:
            self._remote_reachable.labels(namespace=namespace, pool=pool).set(int(reachable))
        else:
            with suppress(KeyError):
                self._remote_reachable.remove(namespace, pool)

    def pool_size(self, namespace: str, pool: str, size: PoolSize | None) -> None:
        """None for a pool that is gone, or that nothing is known of."""
        if size is not None:
            self._pool_replicas.labels(namespace=namespace, pool=pool).set(size.wanted)
            self._pool_ready.labels(namespace=namespace, pool=pool).set(size.ready)
            return
        for gauge in (self._pool_replicas, self._pool_ready):
            with suppress(KeyError):
                gauge.remove(namespace, pool)

    def scaling(self, namespace: str, job: str, decision: Scaling | None) -> None:
        """None for a job that is gone, or whose fleet is not autoscaled."""
        if decision is not None:
            self._recommended.labels(namespace=namespace, rljob=job).set(decision.recommended)
            self._bounded.labels(namespace=namespace, rljob=job).set(decision.bounded)
            return
        for gauge in (self._recommended, self._bounded):
            with suppress(KeyError):
                gauge.remove(namespace, job)

    def without_room(self, namespace: str, job: str, short: bool | None) -> None:
        """None for a job that is gone, or of which nothing is known."""
        if short is not None:
            self._without_room.labels(namespace=namespace, rljob=job).set(int(short))
        else:
            with suppress(KeyError):
                self._without_room.remove(namespace, job)

    def trainer_steps(self, namespace: str, trainer: str, steps: int | None) -> None:
        """None for a trainer that should make none."""
        if steps is not None:
            self._trainer_steps.labels(namespace=namespace, trainer=trainer).set(steps)
        else:
            with suppress(KeyError):
                self._trainer_steps.remove(namespace, trainer)

    @contextmanager
    def leading(self) -> Iterator[None]:
        self.leader.set(1)
        try:
            yield
        finally:
            self.leader.set(0)


def pool_size(pool: Object | None) -> PoolSize | None:
    """None until an operator has said something about the pool. One at rest wants no pods, and neither does one whose
    cluster is lost: its capacity is rebuilt elsewhere.
    """
    reason = _ready_reason(pool)
    if pool is None or reason is None:
        return None
    wanted = int(pool["spec"].get("replicas", 0)) if reason in _POOL_AT_WORK else 0
    return PoolSize(wanted=wanted, ready=int(pool["status"].get("readyReplicas", 0)))


def scaling(job: Object | None) -> Scaling | None:
    """The autoscaler's latest decision; None where it makes none."""
    decision = ((job or {}).get("status") or {}).get("autoscaling")
    return decision and Scaling(recommended=int(decision["recommended"]), bounded=int(decision["bounded"]))


def without_room(job: Object | None) -> bool | None:
    """Whether the job's condition says so; None for one that has ended, and as long as that is not known."""
    status: dict[str, Any] = {} if job is None else job.get("status") or {}
    said = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    if said.get(ConditionType.SUCCEEDED) in ("True", "False") or ConditionType.HAS_ROOM not in said:
        return None
    return bool(said[ConditionType.HAS_ROOM] == "False")


def trainer_steps(trainer: Object | None) -> int | None:
    """None for a trainer of which no steps are expected: at rest, at its end, or without a job."""
    if trainer is None or _ready_reason(trainer) not in _TRAINER_AT_WORK:
        return None
    return int(trainer["status"].get("step", 0))


def _ready_reason(item: Object | None) -> str | None:
    status: dict[str, Any] = {} if item is None else item.get("status") or {}
    conditions = status.get("conditions") or ()
    return next((said["reason"] for said in conditions if said["type"] == ConditionType.READY), None)


def _version() -> str:
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "unknown"
