"""Where the time of a step goes on this rank, as a mean over the last ones: what `trimtab why-slow` shows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PREFIX = "seconds_"
_OVER_STEPS = 10


class StepClock:
    """Of the steps that are over; the parts of one may come in any order and several times."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: dict[str, float] = {}
        self._over: deque[Mapping[str, float]] = deque(maxlen=_OVER_STEPS)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - began)

    def add(self, name: str, seconds: float) -> None:
        self._now[name] = self._now.get(name, 0.0) + seconds

    def step_over(self, *, seconds: float) -> None:
        """`seconds` is the whole step: what no part was told of is `other`."""
        other = max(0.0, seconds - sum(self._now.values()))
        self._over.append({**self._now, "other": other, "step": seconds})
        self._now = {}

    @property
    def means(self) -> dict[str, float]:
        """By name, as heartbeats carry them; a part that a step did not have took no time in it."""
        names = {name for step in self._over for name in step}
        return {f"{PREFIX}{name}": sum(step.get(name, 0.0) for step in self._over) / len(self._over) for name in names}
