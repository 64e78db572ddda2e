"""Where the time of a step goes, by what trainers and rollout pods said in their last heartbeats, or what a run's
history has of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

import msgspec

from trimtab.cli.chronicle.story import Story
from trimtab.fabric.wire.member import MemberHeartbeat, Role

_PREFIX = "seconds_"
ORDER = ("wait", "compute", "update", "publish", "checkpoint", "other")


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the last ten steps of a policy's trainer, over its pods; in seconds."""

    policy: str
    seconds: float
    parts: Mapping[str, float]
    upload_seconds: float | None = None
    """Of the last version, beside the steps."""


class WeightTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last version in each pool, means over its pods; in seconds."""

    pool: str
    refresh_seconds: float
    """From news of it to its being served."""
    pause_seconds: float
    """Of that, with the engine paused."""


def step_times(members: Iterable[MemberHeartbeat]) -> tuple[StepTimes, ...]:
    told: dict[str, list[Mapping[str, float]]] = {}
    for member in members:
        if member.role is Role.TRAINER and f"{_PREFIX}step" in member.measures:
            for policy in member.versions:
                told.setdefault(policy, []).append(member.measures)
    return tuple(_of_trainer(policy, told[policy]) for policy in sorted(told))


def step_times_of(story: Story) -> tuple[StepTimes, ...]:
    """Of a run that has ended, as it was at its end."""
    told = {
        name: [policy.measured[-1].values]
        for name, policy in sorted(story.policies.items())
        if policy.measured and f"{_PREFIX}step" in policy.measured[-1].values
    }
    return tuple(_of_trainer(policy, measures) for policy, measures in told.items())


def _of_trainer(policy: str, told: list[Mapping[str, float]]) -> StepTimes:
    def mean(name: str) -> float:
        return fmean(measures.get(f"{_PREFIX}{name}", 0.0) for measures in told)

    uploads = [measures[f"{_PREFIX}upload"] for measures in told if f"{_PREFIX}upload" in measures]
    return StepTimes(
        policy=policy,
        seconds=mean("step"),
        parts={name: mean(name) for name in ORDER},
        upload_seconds=max(uploads, default=None),
    )


def weight_times(members: Iterable[MemberHeartbeat]) -> tuple[WeightTimes, ...]:
    told: dict[str, list[Mapping[str, float]]] = {}
    for member in members:
        if member.role is Role.ROLLOUT and f"{_PREFIX}refresh" in member.measures:
            told.setdefault(member.pool or "", []).append(member.measures)
    return tuple(
        WeightTimes(
            pool=pool,
            refresh_seconds=fmean(one[f"{_PREFIX}refresh"] for one in told[pool]),
            pause_seconds=fmean(one.get(f"{_PREFIX}pause", 0.0) for one in told[pool]),
        )
        for pool in sorted(told)
    )
