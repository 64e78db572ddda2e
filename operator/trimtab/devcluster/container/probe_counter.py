"""When enough probes in a row have succeeded or failed to change one's mind about a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ProbeTiming:
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Mapping[str, Any]) -> ProbeTiming:
        return cls(
            initial_delay_s=float(probe.get("initialDelaySeconds") or 0),
            period_s=float(probe.get("periodSeconds") or 10),
            timeout_s=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
        )


class ProbeCounter:
    """`verdict` is what the probe says about the container; it changes only after a row of equal results."""

    def __init__(self, timing: ProbeTiming, *, verdict: bool) -> None:
        self._timing = timing
        self._row = 0
        self._last: bool | None = None
        self.verdict = verdict

    def count(self, succeeded: bool) -> bool:
        """Whether this result makes the row long enough, first time or not."""
        self._row = self._row + 1 if succeeded is self._last else 1
        self._last = succeeded
        needed = self._timing.success_threshold if succeeded else self._timing.failure_threshold
        if self._row < needed:
            return False
        self.verdict = succeeded
        return True
