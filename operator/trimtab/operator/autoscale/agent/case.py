"""All that an agent may know about one decision, as one value: nothing is fetched while it thinks, so that what it saw
is what the transcript shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.fabric.wire.balance import BalanceReport
from trimtab.operator.autoscale.history import PastDecision

_OBJECT_NAME = re.compile(r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_DECISION_ID = re.compile(r"\A[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?\Z")


@dataclass(frozen=True, kw_only=True)
class PoolState:
    name: str
    desired: int
    ready: int
    min_replicas: int
    max_replicas: int | None
    devices_per_replica: int
    policies: tuple[str, ...]
    """Those it serves."""
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
class Recommendation:
    """What the formula would do."""

    targets: Mapping[str, int]
    """Replicas by pool."""
    reason: str
    message: str


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
    reports: Mapping[str, tuple[BalanceReport, ...]]
    """By policy, newest first; empty for a policy that has not reported."""
    pools: tuple[PoolState, ...]
    instances: tuple[InstanceState, ...]
    limits: Limits
    recommended: Recommendation
    decisions: tuple[PastDecision, ...] = field(default=())
    """Newest first."""

    def __post_init__(self) -> None:
        for name, value in (("namespace", self.namespace), ("job", self.job)):
            if not _OBJECT_NAME.match(value):
                raise ValueError(f"{name}: {value!r} is not a Kubernetes name")
        if not _DECISION_ID.match(self.decision_id):
            raise ValueError(f"decision_id: {self.decision_id!r} is not 1 to 64 lower-case letters, digits and dashes")
