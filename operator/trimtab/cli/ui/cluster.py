"""Jobs of a cluster, by what the operator writes into their status and by their pods: whoever may list them may look.

A status says how the last window of steps went. What it said before somebody looked is gone, so that curves begin then.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from datetime import datetime

import structlog
from pydantic import ValidationError

from trimtab.api.autoscaling import AutoscalingStatus
from trimtab.api.conditions import ConditionType
from trimtab.api.job import PolicyStatus, RLJob, RLJobStatus
from trimtab.api.labels import JOB, POLICY, POOL, ROLE
from trimtab.cli.chronicle import records
from trimtab.cli.chronicle.records import Began
from trimtab.cli.job_bucket import BusSettings
from trimtab.cli.ui.book import Book
from trimtab.cli.ui.following import follow
from trimtab.cli.ui.run import Place, run_id
from trimtab.cli.ui.shown import Condition, Decision, Figure, Now, Pod, Summary, Told
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import load_settings
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, RLJOBS, Key, Object
from trimtab.kube.timestamps import epoch
from trimtab.operator.conditions import find

_log = structlog.get_logger(__name__)
_LOOK_S = 0.25
_TOLD = 50_000
"""Of a job, of which a page that is open all the time would else keep ever more."""
_NATS = "TRIMTAB_NATS__SERVERS"
_ENDED = ("succeeded", "failed")


class StatusTelling:
    """What one job's status has said so far."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._steps: dict[str, int] = {}
        self._fleet: dict[str, float] = {}
        self._scaled: datetime | None = None
        self.curve: list[float] = []

    def take(self, job: RLJob, *, at: float, began_at: float) -> None:
        status = job.status
        if status is None or len(self.told) >= _TOLD:
            return
        t = max(0.0, at - began_at)
        if not self.told:
            self.told.append(Told(t=0.0, at=began_at, event=_began(job, at=began_at)))
        for policy in status.policies:
            if policy.step and self._steps.get(policy.name) != policy.step:
                self._steps[policy.name] = policy.step
                self.told.append(Told(t=t, at=at, step=policy.step, values=_values(policy)))
                if policy.reward is not None:
                    self.curve.append(policy.reward)
        fleet = {
            f"fleet/{pool.name}/{name}": float(number)
            for pool in status.pools
            for name, number in (("ready", pool.ready_replicas), ("wanted", pool.desired_replicas))
        }
        if fleet != self._fleet:
            self._fleet = fleet
            self.told.append(Told(t=t, at=at, step=status.step, values=fleet))
        scaling = status.autoscaling
        if scaling is not None and scaling.last_scale_time != self._scaled:
            self._scaled = scaling.last_scale_time
            self.told.append(Told(t=t, at=at, event=records.rescaled(scaling, at=at)))

    def figures(self) -> list[Figure]:
        return []


class ClusterRun:
    """`key` names the RLJob; its pods are among those of all."""

    def __init__(self, key: Key, job: Object, *, asks_bus: bool) -> None:
        self.key = key
        self.id = _id(key, job)
        # What was told is of this process alone.
        self.generation = f"{time.time_ns():x}"
        self.telling = StatusTelling()
        self.now = Now()
        self.is_live = False
        self._asks_bus = asks_bus
        self._heard: Now | None = None
        self._seen: tuple[object, ...] = ()
        self.summary = Summary(id=self.id, job=key.name, where=key.namespace, state="unknown")

    @property
    def place(self) -> Place:
        return Place(topology=JobTopology(self.key.namespace, self.key.name), state_folder=None)

    async def follow(self) -> None:
        """By heartbeats, where the environment leads to the bus; else its pods' states have to do."""
        if not self._asks_bus:
            return
        try:
            await follow(lambda: load_settings(os.environ, BusSettings), self.place.topology, self._hear)
        finally:
            self._heard = None

    def _hear(self, now: Now) -> None:
        self._heard = now

    def take(self, job: Object, pods: Mapping[Key, Object], *, at: float) -> bool:
        """Whether its line is another one."""
        versions = tuple(pod["metadata"].get("resourceVersion") for pod in pods.values())
        seen = (job["metadata"].get("resourceVersion"), versions, self._heard)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            read = RLJob.model_validate(job)
        except ValidationError as error:
            _log.warning("job_unreadable", namespace=self.key.namespace, name=self.key.name, errors=error.error_count())
            return False
        before = self.summary
        status = read.status or RLJobStatus()
        began_at = _seconds(status.start_time) or _timestamp(job) or at
        self.telling.take(read, at=at, began_at=began_at)
        self.summary = self._summarised(read, status, at=at, began_at=began_at)
        self.is_live = self.summary.state not in _ENDED
        self.now = self._now(status, [_pod(pod) for _, pod in sorted(pods.items())])
        return self.summary != before

    def _now(self, status: RLJobStatus, pods: list[Pod]) -> Now:
        heard = self._heard or Now()
        return Now(
            live=bool(pods) or heard.live,
            pods=heard.pods or pods,
            stages=heard.stages,
            given_up=heard.given_up,
            decision=None if status.autoscaling is None else _decision(status.autoscaling),
            conditions=[
                Condition(type=one.type, status=one.status, reason=one.reason, message=one.message)
                for one in status.conditions
            ],
            trouble=heard.trouble,
        )

    def _summarised(self, job: RLJob, status: RLJobStatus, *, at: float, began_at: float) -> Summary:
        succeeded = find(status.conditions, ConditionType.SUCCEEDED)
        ended_at = _seconds(status.completion_time)
        return Summary(
            id=self.id,
            job=self.key.name,
            where=self.key.namespace,
            state=_state(succeeded.status, succeeded.reason) if succeeded else "new",
            trouble=status.last_error.message if status.last_error is not None else "",
            policies=[policy.name for policy in status.policies],
            step=status.step,
            max_steps=job.spec.max_steps,
            reward=status.reward,
            scores={
                score.benchmark: score.score
                for policy in status.policies
                for score in policy.evaluation
                if score.score is not None
            },
            ready=status.ready_replicas,
            wanted=sum(pool.desired_replicas for pool in status.pools),
            began_at=began_at,
            changed_at=ended_at,
            seconds=max(0.0, (ended_at or at) - began_at),
            curve=self.telling.curve[-48:],
        )


class ClusterRuns:
    """Of a namespace, or of all."""

    def __init__(self, access: ClusterAccess, *, namespace: str | None) -> None:
        self._access = access
        self._namespace = namespace
        self._asks_bus = _NATS in os.environ

    async def keep(self, book: Book) -> None:
        async with KubeClient(self._access, user_agent="trimtab-ui") as client, asyncio.TaskGroup() as tasks:
            jobs = Reflector(client, RLJOBS, namespace=self._namespace)
            pods = Reflector(client, PODS, namespace=self._namespace, label_selector=JOB)
            tasks.create_task(jobs.run())
            tasks.create_task(pods.run())
            await self._keep(book, jobs, pods)

    async def _keep(self, book: Book, jobs: Reflector, pods: Reflector) -> None:
        runs: dict[Key, ClusterRun] = {}
        while True:
            failure = jobs.failure or pods.failure
            book.say(
                f"cluster {self._namespace}", f"the cluster does not answer: {failure}" if failure is not None else ""
            )
            of_job: dict[Key, dict[Key, Object]] = {}
            for key, pod in pods.items():
                job = pod["metadata"].get("labels", {}).get(JOB, "")
                of_job.setdefault(Key(key.namespace, job), {})[key] = pod
            for key in runs.keys() - jobs.keys():
                book.drop(runs.pop(key).id)
            for key, job in list(jobs.items()):
                if key in runs and runs[key].id != _id(key, job):
                    book.drop(runs.pop(key).id)
                if key not in runs:
                    runs[key] = ClusterRun(key, job, asks_bus=self._asks_bus)
                if runs[key].take(job, of_job.get(key, {}), at=time.time()):
                    book.put(runs[key])
            await asyncio.sleep(_LOOK_S)


def _id(key: Key, job: Object) -> str:
    """A job that was deleted and made anew is another one."""
    return run_id(key.name, "cluster", key.namespace, str(job["metadata"].get("uid", "")))


def _began(job: RLJob, *, at: float) -> Began:
    scaling = job.spec.autoscaling
    return Began(
        at=at,
        job=job.metadata.name,
        max_steps=job.spec.max_steps,
        target_reward=job.spec.target_reward,
        max_staleness=job.spec.data.max_staleness,
        mode=scaling.mode,
        tau_low=scaling.tau_low,
        tau_high=scaling.tau_high,
        window_steps=scaling.window_steps,
    )


def _values(policy: PolicyStatus) -> dict[str, float]:
    found: dict[str, float | None] = {
        "reward": policy.reward,
        "waiting": policy.waiting_fraction,
        "staleness": policy.staleness,
    }
    for score in policy.evaluation:
        found[f"evaluation/{score.benchmark}/score"] = score.score
    return {f"{policy.name}/{name}": value for name, value in found.items() if value is not None}


def _decision(scaling: AutoscalingStatus) -> Decision:
    return Decision(
        mode=scaling.mode,
        current=scaling.current,
        recommended=scaling.recommended,
        bounded=scaling.bounded,
        reason=scaling.reason,
        message=scaling.message,
        maintainer=scaling.maintainer,
        at=_seconds(scaling.last_decision_time),
    )


def _pod(pod: Object) -> Pod:
    metadata, status = pod["metadata"], pod.get("status", {})
    labels = metadata.get("labels", {})
    containers = status.get("containerStatuses", [])
    restarts = sum(one.get("restartCount", 0) for one in containers)
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
    doing = [f"on {pod['spec']['nodeName']}"] if pod.get("spec", {}).get("nodeName") else ["waits for a node"]
    doing += [waiting["reason"] for one in containers if (waiting := one.get("state", {}).get("waiting"))]
    if restarts:
        doing.append(f"{restarts} restarts")
    return Pod(
        id=metadata["name"],
        role=labels.get(ROLE, ""),
        pool=labels.get(POOL, labels.get(POLICY, "")),
        state="stopping" if "deletionTimestamp" in metadata else "ready" if is_ready else str(status.get("phase", "")),
        doing=" · ".join(doing),
        started_at=_timestamp(pod),
    )


def _state(status: str, reason: str) -> str:
    """As a word of its own where it has one."""
    return {"True": "succeeded", "False": "failed"}.get(status, reason)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _timestamp(item: Object) -> float | None:
    created = item["metadata"].get("creationTimestamp")
    return None if created is None else epoch(created)
