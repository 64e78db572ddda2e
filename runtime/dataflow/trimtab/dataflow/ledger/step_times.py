"""How long the ranks of a trainer took for its latest steps, and how much of that they waited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Of one step, summed over the ranks that told."""

    ranks: int
    wait_s: float
    step_s: float

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(
            ranks=self.ranks + other.ranks, wait_s=self.wait_s + other.wait_s, step_s=self.step_s + other.step_s
        )


_NOTHING = StepTime(ranks=0, wait_s=0.0, step_s=0.0)


class StepTimes:
    """By step, for as long as reports need them."""

    def __init__(self, *, window_steps: int) -> None:
        self.by_step: dict[int, StepTime] = {}
        # A report on a window is written a little after its end.
        self._kept_steps = 2 * window_steps + 16

    def add(self, step: int, time: StepTime, *, trained_steps: int) -> None:
        """Ledgers of older versions have a record for each rank; those add up."""
        self.by_step[step] = self.by_step.get(step, _NOTHING) + time
        while (oldest := next(iter(self.by_step))) < trained_steps - self._kept_steps:
            del self.by_step[oldest]

    def wanted(self, step: int, *, trained_steps: int) -> bool:
        return step >= trained_steps - self._kept_steps and step not in self.by_step

    def waiting(self, *, first_step: int, last_step: int) -> tuple[float, float]:
        """Seconds waited and seconds in all, summed over the ranks and steps of a recent window."""
        times = [self.by_step[step] for step in range(first_step, last_step + 1) if step in self.by_step]
        return sum(time.wait_s for time in times), sum(time.step_s for time in times)
