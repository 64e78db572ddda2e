"""The question that a job's reports put to the agent, with all that it may know about one decision, as one value.

Nothing is fetched while the agent thinks, so that what it saw is what the transcript shows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.api.autoscaling import Autoscaling
from trimtab.api.job import RLJob
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.operator.autoscale.fleet import Fleet
from trimtab.operator.autoscale.guard_rails import may_add, may_remove
from trimtab.operator.autoscale.history import History, PastDecision
from trimtab.operator.autoscale.recommendation import Recommendation
from trimtab.operator.autoscale.windows import usual_speeds

ReportHistory = Mapping[str, tuple[BalanceReport, ...]]
"""By policy, newest first; empty for one that has not reported."""

_OBJECT_NAME = re.compile(r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_ID_BYTES = 8
_DECISION_ID = re.compile(r"\A[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?\Z")


@dataclass(frozen=True, kw_only=True)
class PoolState:
    name: str
    desired: int
    ready: int
    min_replicas: int
    max_replicas: int | None
    devices_per_replica: int
    samples_per_second: float | None = None
    """Of one ready replica, measured."""
    cost_per_hour: float | None = None
    start_up_seconds: float | None = None
    """From creation to ready, measured."""


@dataclass(frozen=True, kw_only=True)
class InstanceState:
    id: str
    pool: str
    state: str
    samples_per_second: float
    tokens_per_second: float
    availability: float
    """Share of the newest window in which it was ready."""
    version_lag: int
    in_flight: int
    suspect: bool = False
    """It was heard of and is not any more."""
    last_error: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What holds now, whatever is proposed."""

    min_replicas: int
    max_replicas: int | None
    may_add: int
    """Replicas that may be added before the rate limit's period is over; 0 while growing is paused."""
    may_remove: int
    """Likewise for removing."""
    cooldown_seconds: float
    """Seconds left in which nothing is changed."""


@dataclass(frozen=True, kw_only=True)
class Troubles:
    """What is known of single instances beside their reports, by name."""

    silent: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)
    """The latest failure of each."""


@dataclass(frozen=True, kw_only=True)
class Case:
    namespace: str
    job: str
    decision_id: str
    """Names the transcript, and is what a person approves."""
    at: float
    """Unix seconds."""
    tau_low: float
    tau_high: float
    reports: ReportHistory
    pools: tuple[PoolState, ...]
    instances: tuple[InstanceState, ...]
    limits: Limits
    recommended: Recommendation
    """What the formula would do."""
    decisions: tuple[PastDecision, ...] = field(default=())
    """Newest first."""

    def __post_init__(self) -> None:
        for name, value in (("namespace", self.namespace), ("job", self.job)):
            if not _OBJECT_NAME.match(value):
                raise ValueError(f"{name}: {value!r} is not a Kubernetes name")
        if not _DECISION_ID.match(self.decision_id):
            raise ValueError(f"decision_id: {self.decision_id!r} is not 1 to 64 lower-case letters, digits and dashes")


def question_id(job: RLJob, reports: ReportHistory) -> str:
    """The same for the same reports, so that a question is asked once."""
    newest = sorted((policy, held[0].last_step, held[0].at) for policy, held in reports.items() if held)
    text = repr((job.metadata.uid, job.metadata.generation, newest))
    return hashlib.blake2b(text.encode(), digest_size=_ID_BYTES).hexdigest()


def case_of(
    job: RLJob,
    reports: ReportHistory,
    *,
    fleet: Fleet,
    history: History,
    formula: Recommendation,
    troubles: Troubles,
    question: str,
    now: float,
) -> Case:
    config = job.spec.autoscaling
    return Case(
        namespace=job.metadata.namespace or "default",
        job=job.metadata.name,
        decision_id=question,
        at=now,
        tau_low=config.tau_low,
        tau_high=config.tau_high,
        reports=reports,
        pools=_pools(fleet, history),
        instances=_instances(reports, troubles),
        limits=_limits(config, fleet, history, now=now),
        recommended=formula,
        decisions=history.decisions,
    )


def _pools(fleet: Fleet, history: History) -> tuple[PoolState, ...]:
    speeds = usual_speeds([window for windows in history.windows.values() for window in windows])
    return tuple(
        PoolState(
            name=pool.name,
            desired=pool.desired,
            ready=pool.ready,
            min_replicas=pool.least,
            max_replicas=pool.most,
            devices_per_replica=pool.devices,
            samples_per_second=speeds.get(pool.name),
            cost_per_hour=pool.cost,
            start_up_seconds=pool.startup_s,
        )
        for pool in fleet.pools
    )


def _instances(reports: ReportHistory, troubles: Troubles) -> tuple[InstanceState, ...]:
    seen = {
        instance.member_id: InstanceState(
            id=instance.member_id,
            pool=instance.pool,
            state=instance.state.value,
            samples_per_second=instance.samples_per_second,
            tokens_per_second=instance.tokens_per_second,
            availability=instance.availability,
            version_lag=instance.version_lag,
            in_flight=instance.in_flight,
            suspect=instance.member_id in troubles.silent,
            last_error=troubles.errors.get(instance.member_id, ""),
        )
        for held in reports.values()
        if held
        for instance in held[0].instances
    }
    return tuple(seen[name] for name in sorted(seen))


def _limits(config: Autoscaling, fleet: Fleet, history: History, *, now: float) -> Limits:
    up, down = config.scale_up, config.scale_down
    add = may_add(history.changes, total=fleet.total, max_change=up.max_change, period_s=up.period_seconds, now=now)
    remove = may_remove(
        history.changes, total=fleet.total, max_change=down.max_change, period_s=down.period_seconds, now=now
    )
    return Limits(
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        may_add=0 if up.paused else add,
        may_remove=0 if down.paused else remove,
        cooldown_seconds=max(0.0, history.cooldown_until - now),
    )
