"""How long the ranks of a trainer took for its latest steps, and how much of that they waited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Of one rank in one step."""

    wait_s: float
    step_s: float


class StepTimes:
    """By step and rank, for as long as reports need them."""

    def __init__(self, *, window_steps: int) -> None:
        self.by_step: dict[int, dict[int, RankTimes]] = {}
        # A report on a window is written a little after its end.
        self._kept_steps = 2 * window_steps + 16

    def add(self, step: int, *, rank: int, times: RankTimes, trained_steps: int) -> None:
        self.by_step.setdefault(step, {})[rank] = times
        while (oldest := next(iter(self.by_step))) < trained_steps - self._kept_steps:
            del self.by_step[oldest]

    def wanted(self, step: int, *, rank: int, trained_steps: int) -> bool:
        return step >= trained_steps - self._kept_steps and rank not in self.by_step.get(step, {})

    def waiting(self, *, first_step: int, last_step: int) -> tuple[float, float]:
        """Seconds waited and seconds in all, summed over the ranks and steps of a recent window."""
        times = [rank for step in range(first_step, last_step + 1) for rank in self.by_step.get(step, {}).values()]
        return sum(time.wait_s for time in times), sum(time.step_s for time in times)
