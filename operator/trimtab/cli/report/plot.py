"""What a chart is before it is drawn: series on two axes, what is marked behind and on them, and the round numbers that
stand at the axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
# Finer than a screen shows, and a page of a long run stays small.
_MOST_POINTS = 240
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Series:
    name: str
    points: Sequence[Point]
    """By x, from left to right."""
    kind: Literal["line", "steps", "bars", "dots"] = "line"
    color: int = 0
    """Which of the page's colours; the same for what belongs together."""
    quiet: bool = False
    """Drawn thin, behind what it goes with."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A range of y with a meaning."""

    low: float
    high: float
    label: str
    tone: Literal["grow", "hold", "shrink"]


@dataclass(frozen=True, kw_only=True)
class Level:
    """A value of y to compare with."""

    value: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a value of x."""

    x: float
    label: str
    title: str
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    low: float
    high: float
    text: Callable[[float], str]
    ticks: Callable[[float, float], list[float]]
    """Which values between two are written beside it."""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    key: str
    title: str
    note: str
    """One sentence under the title."""
    x: Axis
    y: Axis
    series: Sequence[Series]
    bands: Sequence[Band] = ()
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    wide: bool = False


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


def thinned(points: Sequence[Point], *, most: int = _MOST_POINTS) -> list[Point]:
    """Neighbours averaged, where there are too many to see. The first and the last stay what they are."""
    if len(points) <= most:
        return list(points)
    inner, room = points[1:-1], most - 2
    parts = [inner[len(inner) * n // room : len(inner) * (n + 1) // room] for n in range(room)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return [points[0], *means, points[-1]]


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
