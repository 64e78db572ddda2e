"""Reconciles every RLJob, RolloutPool and Trainer: changes put keys into a queue, workers take them one by one.

Reflectors tell of changes, one watch for each kind: they notice what vanished while a watch was down.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from trimtab.api import labels
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusError
from trimtab.kube.errors import Conflict, KubeError
from trimtab.kube.resources import Key, Object
from trimtab.operator.metrics import OperatorMetrics, pool_size, scaling, trainer_steps, without_room
from trimtab.operator.reconcile.cache import Unreadable
from trimtab.operator.reconcile.cluster import KINDS, Cluster, Result, WorkKey, job_named_by
from trimtab.operator.reconcile.deletion import finish_deletion, has_finalizer
from trimtab.operator.reconcile.job import reconcile_job
from trimtab.operator.reconcile.observation import LeaveAlone
from trimtab.operator.reconcile.ownership import controller_of, is_leaving
from trimtab.operator.reconcile.placement import is_remote
from trimtab.operator.reconcile.pool import reconcile_pool
from trimtab.operator.reconcile.status import write_faulted, write_unreadable
from trimtab.operator.reconcile.trainer import reconcile_trainer
from trimtab.operator.reconcile.work_queue import WorkQueue

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=0.2, cap_s=60.0)
_LONGEST_RECONCILE_S = 300.0
_TELLING_S = 30.0
_RESYNC_SPREAD = 0.2
_ECHOED = ("resourceVersion", "managedFields")
"""What changes in an object's metadata when only its status is written."""

Reconcile = Callable[[Cluster, WorkKey], Awaitable[Result]]
RECONCILERS: Mapping[str, Reconcile] = {
    "RLJob": reconcile_job,
    "RolloutPool": reconcile_pool,
    "Trainer": reconcile_trainer,
}


class SayFaulted(Protocol):
    def __call__(self, cluster: Cluster, item: Object, message: str, *, now: float) -> Awaitable[None]: ...


class Controller:
    def __init__(
        self,
        cluster: Cluster,
        metrics: OperatorMetrics,
        *,
        reconcilers: Mapping[str, Reconcile] = RECONCILERS,
        say_faulted: SayFaulted = write_faulted,
    ) -> None:
        """`reconcilers` by kind; `say_faulted` tells an object that it could not be reconciled."""
        self._cluster = cluster
        self._say_faulted = say_faulted
        self._reconcilers = reconcilers
        self._metrics = metrics
        self._failures: dict[WorkKey, int] = {}
        self._backing_off: set[WorkKey] = set()
        self.queue: WorkQueue[WorkKey] = WorkQueue(
            clock=time.monotonic, tenant=_namespace_of, at_once=max(1, cluster.settings.workers // 2)
        )
        cluster.jobs.listen(self._job_changed)
        cluster.pools.listen(lambda key, before, after: self._child_changed("RolloutPool", key, before, after))
        cluster.trainers.listen(lambda key, before, after: self._child_changed("Trainer", key, before, after))
        cluster.pods.listen(self._pod_changed)
        cluster.jobs.listen(lambda key, before, after: metrics.scaling(*key, scaling(after)))
        cluster.jobs.listen(lambda key, before, after: metrics.without_room(*key, without_room(after)))
        cluster.pools.listen(lambda key, before, after: metrics.pool_size(*key, pool_size(after)))
        cluster.trainers.listen(lambda key, before, after: metrics.trainer_steps(*key, trainer_steps(after)))
        cluster.remote.listen(cluster.pools, wake=lambda key: self.wake("RolloutPool", key))
        metrics.queue_depth.set_function(lambda: self.queue.depth)
        metrics.queue_age.set_function(lambda: self.queue.oldest_s)
        metrics.oldest_start.set_function(self._oldest_start)
        metrics.watched_jobs.set_function(lambda: cluster.watches.count)

    def wake(self, kind: str, key: Key) -> None:
        self.queue.add(WorkKey(kind, *key))

    def wake_job(self, key: Key) -> None:
        """And all that works for it."""
        self.wake("RLJob", key)
        self._wake_children(key)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._cluster.settings.workers):
                group.create_task(self._work(group))

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while True:
            key = await self.queue.take()
            item = self._cluster.pools.get(key.key) if key.kind == "RolloutPool" else None
            if item is not None and is_remote(item):
                # By itself: a cluster that does not answer must not hold one of the workers.
                self.queue.detach(key)
                group.create_task(self._reconcile_and_finish(key))
            else:
                await self._reconcile_and_finish(key)

    async def _reconcile_and_finish(self, key: WorkKey) -> None:
        try:
            await self._reconcile(key)
        finally:
            self.queue.done(key)

    async def _reconcile(self, key: WorkKey) -> None:
        began = time.monotonic()
        result, outcome = Result(), "done"
        self._backing_off.discard(key)
        try:
            async with asyncio.timeout(_LONGEST_RECONCILE_S):
                result = await self._dispatch(key)
        except Conflict:
            # Our copy was old. The newer one is on its way, and rings by itself.
            outcome = "conflict"
        except (KubeError, BusError, TimeoutError) as error:
            outcome = "failed"
            _log.warning("reconcile_failed", **key._asdict(), error=str(error) or type(error).__name__)
        except LeaveAlone as reason:
            outcome = "left_alone"
            _log.info("left_alone", **key._asdict(), reason=str(reason))
        except Exception as fault:  # noqa: BLE001 - a fault of ours with one object must not stop all others
            outcome = "fault"
            _log.exception("reconcile_faulted", **key._asdict())
            # Before its status changes: the echo of that is no reason to try again at once.
            self._backing_off.add(key)
            await self._tell_fault(key, fault)
        if result.objected or result.busy:
            outcome = "objected"
        self._metrics.reconciled(key.kind, result=outcome, seconds=time.monotonic() - began)
        if outcome in ("failed", "fault"):
            self._backing_off.add(key)
        self._requeue(key, result, failed=result.busy or outcome in ("conflict", "failed", "fault"))

    async def _dispatch(self, key: WorkKey) -> Result:
        try:
            return await self._reconcilers[key.kind](self._cluster, key)
        except Unreadable as problem:
            return await self._report_unreadable(key, str(problem))

    async def _report_unreadable(self, key: WorkKey, problem: str) -> Result:
        """In the object's own status. Otherwise it is left alone, and a deleted one may go."""
        item = self._cluster.cache_of(key.kind).get(key.key)
        if item is None:
            return Result()
        if is_leaving(item) and has_finalizer(item):
            return await finish_deletion(self._cluster, item, None)
        message = f"the operator cannot read the object: {problem}"
        await write_unreadable(self._cluster, item, message, now=self._cluster.clock())
        return Result()

    async def _tell_fault(self, key: WorkKey, fault: Exception) -> None:
        """In the object's own status, without the fault's text, which may quote anything."""
        message = (
            f"the operator failed at this object ({type(fault).__name__}) and tries again, less and less often; change "
            "what is unusual about it, or report the operator's log line reconcile_faulted"
        )
        try:
            item = self._cluster.cache_of(key.kind).get(key.key)
            if item is not None:
                async with asyncio.timeout(_TELLING_S):
                    await self._say_faulted(self._cluster, item, message, now=self._cluster.clock())
        except Exception as error:  # noqa: BLE001 - what broke the reconcile may break this, and then the log has it
            _log.warning("fault_not_told", **key._asdict(), error=type(error).__name__)

    def _requeue(self, key: WorkKey, result: Result, *, failed: bool) -> None:
        if failed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            self.queue.add_later(key, _BACKOFF.delay_s(failures))
            return
        self._failures.pop(key, None)
        if self._cluster.cache_of(key.kind).get(key.key) is None:
            self.queue.forget(key)
            self._backing_off.discard(key)
            return
        if result.requeue:
            self.queue.add(key)
        if result.requeue_at is not None:
            self.queue.add_later(key, result.requeue_at - self._cluster.clock())
        spread = random.uniform(1 - _RESYNC_SPREAD, 1 + _RESYNC_SPREAD)  # noqa: S311 - not for secrets
        self.queue.add_later(key, self._cluster.settings.resync_s * spread)

    def _job_changed(self, key: Key, before: Object | None, after: Object | None) -> None:
        self._changed("RLJob", key, before, after)
        if before is None or after is None or _matters_to_children(before) != _matters_to_children(after):
            self._wake_children(key)

    def _changed(self, kind: str, key: Key, before: Object | None, after: Object | None) -> None:
        """A status is our own writing, and its echo is no reason to try again what has just failed."""
        echo = before is not None and after is not None and _without_status(before) == _without_status(after)
        if not (echo and WorkKey(kind, *key) in self._backing_off):
            self.wake(kind, key)

    def _child_changed(self, kind: str, key: Key, before: Object | None, after: Object | None) -> None:
        self._changed(kind, key, before, after)
        for item in (before, after):
            if item is not None and (job := job_named_by(item)) is not None:
                self.wake("RLJob", Key(key.namespace, job))

    def _pod_changed(self, key: Key, before: Object | None, after: Object | None) -> None:
        pod = after or before
        assert pod is not None
        owner = controller_of(pod)
        if owner is not None and owner["kind"] in KINDS:
            self.wake(owner["kind"], Key(key.namespace, owner["name"]))
        if after is None and (job := pod["metadata"].get("labels", {}).get(labels.JOB)):
            # A job that is being deleted waits for the last of them.
            self.wake("RLJob", Key(key.namespace, job))

    def _wake_children(self, job: Key) -> None:
        for kind, cache in (("RolloutPool", self._cluster.pools), ("Trainer", self._cluster.trainers)):
            for item in cache.under(job):
                self.wake(kind, Key(job.namespace, item["metadata"]["name"]))

    def _oldest_start(self) -> float:
        since = self.queue.busy_since
        return 0.0 if since is None else time.time() - (time.monotonic() - since)


def _namespace_of(key: WorkKey) -> str:
    return key.namespace


def _without_status(item: Object) -> Object:
    metadata = {name: value for name, value in item["metadata"].items() if name not in _ECHOED}
    return {name: value for name, value in item.items() if name != "status"} | {"metadata": metadata}


def _matters_to_children(job: Object) -> tuple[object, ...]:
    """What of a job decides about its pools and trainers; progress in its status does not."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    ends = [condition["status"] for condition in conditions if condition["type"] == "Succeeded"]
    metadata = job["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), ends
