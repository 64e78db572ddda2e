"""One policy's balance over one window of trainer steps, as evidence for the size of the fleet.

The buffer between rollout and trainer is bounded. While it is full, rollout produces exactly what the trainer takes,
however large the fleet is: such a window says that the fleet suffices, and not by how much. All others say how much
capacity would have kept pace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.member import State

# Where a trainer waits nearly all the time, consumption says little about what it could take.
_LEAST_BUSY = 0.01
# Groups that happen to end on this or that side of a window's edge are no trend.
_BALANCED = 0.05


@dataclass(frozen=True, kw_only=True)
class Window:
    policy: str
    at: float
    """Its end."""
    seconds: float
    steps: int
    wait: float
    """Share of its time that the trainer waited for samples."""
    accepted: int
    """Samples that came into the buffer and did not become too stale in it."""
    consumed: int
    """Samples that left it for their first time."""
    tokens: float
    """Tokens of a sample, on average; 1 where nobody counts them."""
    buffered: int | None
    """Samples in the buffer at its end."""
    room: int | None
    """Samples that may be in the buffer or in the making."""
    ready: Mapping[str, float]
    """By pool, replicas that took tasks, averaged over the window."""
    speeds: Mapping[str, float]
    """By pool, samples per second of a replica."""

    @property
    def demand(self) -> float:
        """Samples per second that the trainer takes while it does not wait."""
        return self.consumed / (self.seconds * max(_LEAST_BUSY, 1.0 - self.wait)) if self.seconds > 0 else 0.0

    @property
    def load(self) -> float:
        """Tokens per second that would keep the trainer busy."""
        return self.demand * self.tokens

    @property
    def kept_pace(self) -> float | None:
        """Share of the demand that was produced. None without production or consumption."""
        if not (self.accepted > 0 and self.consumed > 0 and self.seconds > 0):
            return None
        return self.accepted / self.seconds / self.demand

    @property
    def steps_in_reserve(self) -> float | None:
        """Steps that the trainer could go on without any production."""
        if self.buffered is None or self.consumed <= 0:
            return None
        return self.buffered * self.steps / self.consumed

    def held_back(self, *, tau_low: float) -> bool:
        """Whether rollout produced what the trainer took, and perhaps could have produced more."""
        return self.wait <= tau_low / 2 and abs(self.accepted - self.consumed) <= _BALANCED * self.consumed


def window_of(report: BalanceReport, *, ready: Mapping[str, float] | None) -> Window:
    """`ready` as the operator saw it; None when it was not there to see it."""
    made = report.produced.samples
    return Window(
        policy=report.policy,
        at=report.at,
        seconds=report.wall_seconds,
        steps=report.last_step - report.first_step + 1,
        wait=report.wait_fraction,
        accepted=max(0, report.accepted.samples - report.stale_skipped),
        consumed=max(0, report.consumed.samples - report.replayed),
        tokens=report.produced.tokens / made if made and report.produced.tokens else 1.0,
        buffered=report.buffered,
        room=report.room,
        ready=_ready_at_end(report) if ready is None else ready,
        speeds=_speeds(report),
    )


def usual_speeds(windows: Sequence[Window]) -> dict[str, float]:
    """By pool, averaged over the windows: what one heartbeat says of a replica is hardly more than noise."""
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for window in windows:
        for pool, speed in window.speeds.items():
            seen[pool].append(speed)
    return {pool: fmean(speeds) for pool, speeds in seen.items()}


def _ready_at_end(report: BalanceReport) -> dict[str, float]:
    counts: defaultdict[str, float] = defaultdict(float)
    for instance in report.instances:
        counts[instance.pool] += instance.state is State.READY
    return dict(counts)


def _speeds(report: BalanceReport) -> dict[str, float]:
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for instance in report.instances:
        if instance.state is State.READY:
            seen[instance.pool].append(instance.samples_per_second)
    return {pool: fmean(speeds) for pool, speeds in seen.items() if any(speeds)}
