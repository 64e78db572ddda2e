"""Rates between heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Per second."""

    samples: float
    tokens: float


class Throughput:
    """Turns counters that only grow into rates over the time since the last look."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = (clock(), 0, 0)

    def since_last(self, *, samples: int, tokens: int) -> Rates:
        at, samples_before, tokens_before = self._last
        now = self._clock()
        elapsed = max(now - at, 1e-3)
        self._last = (now, samples, tokens)
        return Rates(samples=(samples - samples_before) / elapsed, tokens=(tokens - tokens_before) / elapsed)
