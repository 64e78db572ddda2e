"""How fresh a worker's weights are, by what trainers announce, and which and how many tasks it may run with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

# The latest ten samples make up nine tenths of an average.
_WEIGHT = 0.2


class MovingAverage:
    """An exponential average. `value` is None before the first sample."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, sample: float, *, times: int = 1) -> None:
        kept = (1 - _WEIGHT) ** times
        self.value = sample if self.value is None else kept * self.value + (1 - kept) * sample


class Announcements:
    """The versions of one policy as its trainer announces them."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mean = MovingAverage()
        self._last: float | None = None
        self.newest = 0
        """Version 0 is the model's own weights, which are never announced."""

    def note(self, version: int) -> None:
        """A trainer that was restarted goes on from its checkpoint, and announces some versions again."""
        now = self._clock()
        passed = version - self.newest
        if passed > 0 and self._last is not None:
            # Only the newest pointer is kept: versions that came between two looks are seen as one step.
            self._mean.add((now - self._last) / passed, times=passed)
        self.newest = version
        self._last = now

    @property
    def seconds_between(self) -> float | None:
        """From one version to the next; None until two have been seen.

        A version that is overdue counts with the time it has taken so far. Otherwise a trainer that has begun to wait
        for samples would seem fast, and be given fewer.
        """
        if self._mean.value is None or self._last is None:
            return None
        return max(self._mean.value, self._clock() - self._last)


class Serving(Protocol):
    """One engine's gate, or all engines of a policy."""

    @property
    def version(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class VersionLine:
    """One policy: what its engines serve, and what its trainer has announced."""

    served: Serving
    announcements: Announcements

    @property
    def version(self) -> int:
        return self.served.version

    @property
    def lag(self) -> int:
        # After a trainer's restart the engine may serve a version that is to be announced again.
        return max(0, self.announcements.newest - self.version)


class Freshness:
    """All policies of one worker. The one that is furthest behind decides: a group has samples of each."""

    def __init__(self, lines: Mapping[str, VersionLine], *, max_staleness: int) -> None:
        self._lines = lines
        self._max_staleness = max_staleness
        self._group_seconds = MovingAverage()

    def group_took(self, seconds: float) -> None:
        self._group_seconds.add(seconds)

    @property
    def lag(self) -> int:
        return max((line.lag for line in self._lines.values()), default=0)

    @property
    def versions_per_group(self) -> float:
        """Versions that are announced while a group is rolled out; 0 while that is unknown."""
        seconds = self._group_seconds.value
        if seconds is None:
            return 0.0
        between = (line.announcements.seconds_between for line in self._lines.values())
        return max((seconds / interval for interval in between if interval), default=0.0)

    def allowance(self, max_tasks: int) -> int:
        return allowance(
            max_tasks,
            lag=self.lag,
            versions_per_group=self.versions_per_group,
            max_staleness=self._max_staleness,
        )

    def too_old_for(self, minimum_versions: Mapping[str, int]) -> dict[str, int]:
        """Of the policies that are served here, those with weights older than the minimum, and their versions."""
        return {
            policy: line.version
            for policy, line in self._lines.items()
            if line.version < minimum_versions.get(policy, 0)
        }


def allowance(max_tasks: int, *, lag: int, versions_per_group: float, max_staleness: int) -> int:
    """The share of `max_tasks` that has a chance to be trained on.

    `lag` is by how many versions the engine is behind. What is left of the staleness bound is the room that samples
    begun now have: none, and they are too old before they begin. Up to half of the bound is the ordinary course of
    things, with weights on their way all the time. Fewer versions than pass while a group is rolled out, and most
    samples will be too old when they are finished. As long as there is room, one task goes on: it shows when things
    have become better.
    """
    room = max_staleness + 1 - lag
    if room <= 0:
        return 0
    in_time = min(1.0, room / versions_per_group) if versions_per_group > 0 else 1.0
    fresh = min(1.0, 2 * room / (max_staleness + 1))
    return max(1, int(max_tasks * fresh * in_time))
