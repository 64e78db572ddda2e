"""The balance report: does a policy's trainer wait for rollouts or the other way round, over a window of steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.member import State
from trimtab.fabric.wire.message import Message, Part
from trimtab.fabric.wire.values import Count, Fraction, Name, Rate, Seconds, Token, UnixSeconds, Version


class Branch(StrEnum):
    """Which of the three zones the waiting fraction fell into."""

    GROW = "grow"
    HOLD = "hold"
    SHRINK = "shrink"


class Volume(Part, frozen=True, kw_only=True):
    samples: Count = 0
    tokens: Count = 0


class Instance(Part, frozen=True, kw_only=True):
    """One rollout instance in the window."""

    member_id: Token
    pool: Name
    state: State
    samples_per_second: Rate = 0.0
    tokens_per_second: Rate = 0.0
    availability: Fraction = 1.0
    """The share of the window in which it was ready."""
    version_lag: Count = 0
    in_flight: Count = 0
    """Tasks that it has at the end of the window."""
    mean_in_flight: Rate | None = None
    """Tasks that it had on average before its last heartbeat in the window; absent where it does not say."""
    capacity: Count = 0
    """Tasks that it may have; 0 where it does not say."""


class StageLoad(Part, frozen=True, kw_only=True):
    """One stage of the job in the window, whichever policies' rows it gets."""

    stage: Name
    waiting: Count = 0
    """Groups that it has been asked about and has not answered at the end of the window."""
    done: Count = 0
    """Groups that it answered in the window."""
    failed: Count = 0
    """Groups that were given up because of it in the window."""


class BalanceReport(Message, frozen=True, kw_only=True):
    """What autoscaling is decided on, and what `trimtab balance` shows."""

    KIND: ClassVar[int] = 12
    MAX_BYTES: ClassVar[int] = 4 << 20

    job: Name
    policy: Name
    version: Version
    first_step: Count
    last_step: Count
    wall_seconds: Seconds
    wait_seconds: Seconds
    step_seconds: Seconds
    wait_fraction: Fraction
    """w: wait_seconds over step_seconds, 0 for an empty window."""
    produced: Volume
    accepted: Volume
    consumed: Volume
    replayed: Count = 0
    """Samples of those consumed that had been consumed before."""
    stale_skipped: Count = 0
    buffered: Count | None = None
    """Samples that wait for the trainer at the end of the window."""
    staged: Count = 0
    """Samples that wait for stages at the end of the window."""
    room: Count | None = None
    """The most that may wait or be in the making: the staleness bound."""
    instances: Annotated[tuple[Instance, ...], Meta(max_length=16384)] = ()
    stages: Annotated[tuple[StageLoad, ...], Meta(max_length=1024)] = ()
    """Those that rows go through which the trainer takes."""
    stage_pods: Annotated[tuple[Instance, ...], Meta(max_length=16384)] = ()
    """Pods that serve stages alone; what they have in flight are groups."""
    branch: Branch
    current: Count
    maintainer: Name
    """Who decides about the size of the fleet, as the manifest says: ThreeZone, Trim or Agent."""
    target: Count | None = None
    """How many instances that asks for, before any bound. Only ThreeZone decides on a report alone; what the others
    recommend is in the job's status.
    """
    at: UnixSeconds

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last_step < self.first_step:
            raise InvalidFieldError("before first_step", field="last_step")
