"""How fast things go: averages that follow what happens now, and the rhythm in which a policy's versions come."""

from __future__ import annotations

from collections.abc import Callable

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
        """Version 0 is the model's own weights, which nobody announces."""

    def note(self, version: int) -> None:
        """A trainer that was restarted goes on from its checkpoint, and announces some versions again."""
        now = self._clock()
        passed = version - self.newest
        if passed > 0 and self._last is not None:
            # Only the newest pointer is kept: versions that came while nobody looked are seen as one step.
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
