"""Where the time of a sample goes, from its task to the step that it is trained in, over the newest ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from trimtab.fabric.wire.trajectory import Trajectory

QUEUE = "queue"
OTHER = "own code"
READY = "ready"
ORDER = (QUEUE, "weights", "prefill", "decode", "engine", "tools", "programs", "scoring", OTHER, READY)
"""As an episode goes through them; what workflows have named themselves stands before their own code."""
_SLOWEST = 0.1


class SampleTime(msgspec.Struct, frozen=True, kw_only=True):
    """One episode of one role. `waits_s` is from its end until its batch was made; None as long as it was not."""

    row: Trajectory
    waits_s: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """By name, in seconds. Branches that ran side by side are added up, so their sum may be more than it took."""
        row, found = self.row, dict[str, float]()
        if row.queued_at is not None:
            # Clocks of two pods: what is negative is nothing.
            found[QUEUE] = max(0.0, row.started_at - row.queued_at)
        for phase in row.phases:
            found[phase.name] = found.get(phase.name, 0.0) + phase.seconds
        known = sum(phase.seconds for phase in row.phases)
        found[OTHER] = max(0.0, row.finished_at - row.started_at - known)
        if self.waits_s is not None:
            found[READY] = self.waits_s
        return found

    @property
    def seconds(self) -> float:
        """From its task to the end of the episode."""
        return self.row.finished_at - (self.row.queued_at or self.row.started_at)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: float
    """Mean."""
    slowest_seconds: float
    """Mean over the slowest tenth of the samples."""


class SampleTimes(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    samples: int
    seconds: float
    slowest_seconds: float
    shares: tuple[Share, ...]


def sample_times(samples: Iterable[SampleTime]) -> tuple[SampleTimes, ...]:
    """By policy. An episode of several rows counts once."""
    episodes: dict[tuple[str, str, int], SampleTime] = {}
    for sample in samples:
        if sample.row.phases or sample.row.queued_at is not None:
            episodes.setdefault((sample.row.policy, sample.row.group_id, sample.row.group_index), sample)
    by_policy: dict[str, list[SampleTime]] = {}
    for (policy, _, _), sample in episodes.items():
        by_policy.setdefault(policy, []).append(sample)
    return tuple(_of_policy(policy, by_policy[policy]) for policy in sorted(by_policy))


def _of_policy(policy: str, samples: Sequence[SampleTime]) -> SampleTimes:
    ranked = sorted(samples, key=lambda one: one.seconds, reverse=True)
    slowest = ranked[: max(1, round(_SLOWEST * len(ranked)))]
    every, worst = _means(ranked), _means(slowest)
    return SampleTimes(
        policy=policy,
        samples=len(ranked),
        seconds=fmean(one.seconds for one in ranked),
        slowest_seconds=fmean(one.seconds for one in slowest),
        shares=tuple(
            Share(name=name, seconds=every[name], slowest_seconds=worst.get(name, 0.0))
            for name in sorted(every, key=_place)
        ),
    )


def _means(samples: Sequence[SampleTime]) -> Mapping[str, float]:
    """Of what not every sample has, over those that have it where it is how long one waited, and over all otherwise."""
    parts = [sample.parts for sample in samples]
    names = {name for one in parts for name in one}
    counted = {name: sum(name in one for one in parts) if name == READY else len(parts) for name in names}
    return {name: sum(one.get(name, 0.0) for one in parts) / counted[name] for name in names}


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name), "") if name in ORDER else (ORDER.index(OTHER) - 1, name)
