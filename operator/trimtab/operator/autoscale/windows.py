"""One policy's balance over one window of trainer steps, as evidence for the size of the fleet.

The buffer between rollout and trainer is bounded. While it is full, rollout produces exactly what the trainer takes,
however large the fleet is: such a window says that the fleet suffices, and not by how much. The others measure it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trimtab.fabric.wire.balance import BalanceReport, Instance
from trimtab.fabric.wire.member import State

DAMPED_OVER = 5
"""Windows that a measurement is the median of."""

_SHORTEST_S = 0.001
# Where a trainer waits nearly all the time, consumption says little about what it could take.
_LEAST_BUSY = 0.01
# Groups that happen to end on this or that side of a window's edge are no trend.
_BALANCED = 0.05
_CLEARLY_FALLING = 0.08
# A place is free for a moment between two tasks.
_BUSY = 0.9
_HALF_BUSY = 0.5


@dataclass(frozen=True, kw_only=True)
class Window:
    policy: str
    at: float
    """Its end."""
    seconds: float
    steps: int
    settled: bool
    """The fleet kept its size, and the pipeline was full from the beginning. Otherwise it makes less than it can."""
    wait: float
    """Share of its time that the trainer waited for samples."""
    accepted: int
    """Samples that came into the buffer and did not become too stale in it."""
    consumed: int
    """Samples that left it for their first time."""
    tokens: float
    """Tokens of a sample, on average; 1 where they are not counted."""
    buffered: int | None
    """Samples in the buffer at its end."""
    room: int | None
    """Samples that may be in the buffer or in the making."""
    busy: float | None
    """Share of the engines' places in use at its end; None where it is not reported."""
    busy_before: float | None
    """The same at its beginning."""
    ready: Mapping[str, float]
    """By pool, replicas that took tasks, averaged over the window."""
    speeds: Mapping[str, float]
    """By pool, samples per second of a replica."""

    @property
    def demand(self) -> float:
        """Samples per second that the trainer takes while it does not wait."""
        return self.consumed / (self.seconds * max(_LEAST_BUSY, 1.0 - self.wait))

    @property
    def load(self) -> float:
        """Tokens per second that would keep the trainer busy."""
        return self.demand * self.tokens

    @property
    def kept_pace(self) -> float | None:
        """Share of the demand that was produced. None without production or consumption."""
        if not (self.accepted > 0 and self.consumed > 0):
            return None
        return self.accepted / self.seconds / self.demand

    @property
    def steps_in_reserve(self) -> float | None:
        """Steps that the trainer could go on without any production."""
        if self.buffered is None or self.consumed <= 0:
            return None
        return self.buffered * self.steps / self.consumed

    @property
    def busiest(self) -> float | None:
        """Share of the engines' places in use, at its beginning or its end; None where it is not reported."""
        return None if self.busy is None or self.busy_before is None else max(self.busy, self.busy_before)

    @property
    def drains_buffer(self) -> bool:
        """Whether more left the buffer than came into it."""
        return self._gained < -_CLEARLY_FALLING

    @property
    def _gained(self) -> float:
        return (self.accepted - self.consumed) / max(1, self.consumed)

    def measures(self, *, tau_low: float) -> bool:
        """Whether rollout produced as much as it could. If not, what it can do is not known."""
        if self.wait > tau_low / 2:
            return True
        if self.busy is None or self.busy_before is None:
            return abs(self._gained) > _BALANCED
        # A buffer that falls while engines have nothing to do waits for something else than engines: weights, say.
        falling = self._gained < -_CLEARLY_FALLING and max(self.busy, self.busy_before) >= _HALF_BUSY
        return falling or min(self.busy, self.busy_before) >= _BUSY


def window_of(
    report: BalanceReport, *, ready: Mapping[str, float] | None, settled: bool, before: Window | None
) -> Window:
    """`ready` as the operator saw it; None when it was not there to see it. `before` is the window before this."""
    made = report.produced.samples
    return Window(
        policy=report.policy,
        at=report.at,
        seconds=max(_SHORTEST_S, report.wall_seconds),
        steps=report.last_step - report.first_step + 1,
        settled=settled and report.first_step > 0,
        wait=report.wait_fraction,
        accepted=max(0, report.accepted.samples - report.stale_skipped),
        consumed=max(0, report.consumed.samples - report.replayed),
        tokens=report.produced.tokens / made if made and report.produced.tokens else 1.0,
        buffered=report.buffered,
        room=report.room,
        busy=_busy(report),
        busy_before=None if before is None else before.busy,
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


def _busy(report: BalanceReport) -> float | None:
    ready = [instance for instance in report.instances if instance.state is State.READY and instance.capacity]
    places = sum(instance.capacity for instance in ready)
    return sum(min(_tasks(instance), instance.capacity) for instance in ready) / places if places else None


def _tasks(instance: Instance) -> float:
    return instance.in_flight if instance.mean_in_flight is None else instance.mean_in_flight


def _speeds(report: BalanceReport) -> dict[str, float]:
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for instance in report.instances:
        if instance.state is State.READY:
            seen[instance.pool].append(instance.samples_per_second)
    return {pool: fmean(speeds) for pool, speeds in seen.items() if any(speeds)}
