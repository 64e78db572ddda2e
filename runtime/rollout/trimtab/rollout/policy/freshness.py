"""How fresh a worker's weights are, and what follows from it: which tasks it may run, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.rollout.allowance import allowance
from trimtab.rollout.pace import Announcements, MovingAverage
from trimtab.rollout.policy.version_gate import VersionGate


@dataclass(frozen=True, kw_only=True)
class VersionLine:
    """One policy: what its engine serves, and what its trainer has announced."""

    gate: VersionGate
    announcements: Announcements

    @property
    def version(self) -> int:
        return self.gate.version

    @property
    def lag(self) -> int:
        # After a trainer's restart the engine may serve a version that is to be announced again.
        return max(0, self.announcements.newest - self.gate.version)


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
            policy: line.gate.version
            for policy, line in self._lines.items()
            if line.gate.version < minimum_versions.get(policy, 0)
        }
