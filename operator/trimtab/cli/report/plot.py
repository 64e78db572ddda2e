"""What a chart is before it is drawn: series on two axes, and what is marked behind and on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
# Finer than a screen shows, and a page of a long run stays small.
_MOST_POINTS = 240


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


def thinned(points: Sequence[Point], *, most: int = _MOST_POINTS) -> list[Point]:
    """Neighbours averaged, where there are too many to see. The first and the last stay what they are."""
    if len(points) <= most:
        return list(points)
    inner, room = points[1:-1], most - 2
    parts = [inner[len(inner) * n // room : len(inner) * (n + 1) // room] for n in range(room)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return [points[0], *means, points[-1]]
