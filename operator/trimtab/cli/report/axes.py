"""Scales and the round numbers that stand at them."""

from __future__ import annotations

import math
from dataclasses import dataclass

_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def round_ticks(low: float, high: float, *, about: int = 4, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within the range."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - _TOLERANCE))
    return _multiples(low, high, max(1.0, step) if whole else step)


def count_ticks(low: float, high: float) -> list[float]:
    return round_ticks(low, high, about=6, whole=True)


def clock_ticks(low: float, high: float, *, about: int = 8) -> list[float]:
    """Seconds, at the full minutes and hours of a clock."""
    if not high > low:
        return [low]
    step = next((step for step in _CLOCK_STEPS if step * about >= high - low), None)
    return _multiples(low, high, step or 86_400 * math.ceil((high - low) / about / 86_400))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - _TOLERANCE), math.floor(high / step + _TOLERANCE)
    return [number * step for number in range(first, last + 1)]
