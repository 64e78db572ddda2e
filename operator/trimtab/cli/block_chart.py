"""Curves for terminals, out of block characters, as wide as the place they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_BARS = " ▁▂▃▄▅▆▇█"
_LEVELS = len(_BARS) - 1
_NARROWEST = 8


def block_chart(values: Sequence[float], *, low: float, high: float, width: int, height: int = 1) -> list[str]:
    """Rows from top to bottom, the newest value on the right, averaged to fit."""
    span = max(high - low, 1e-9)
    filled = [round(min(1.0, max(0.0, (mean - low) / span)) * _LEVELS * height) for mean in _means(values, width)]
    return [
        "".join(_BARS[min(_LEVELS, max(0, level - _LEVELS * row))] for level in filled)
        for row in reversed(range(height))
    ]


def _means(values: Sequence[float], width: int) -> list[float]:
    columns = min(width, len(values))
    parts = (values[len(values) * n // columns : len(values) * (n + 1) // columns] for n in range(columns))
    return [sum(part) / len(part) for part in parts]


@dataclass(frozen=True, kw_only=True)
class BlockChart:
    """A block chart in a cell of a table. A value at the bottom of the scale still shows as a thin line."""

    values: Sequence[float]
    low: float
    high: float
    height: int = 1
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = block_chart(
            self.values, low=self.low, high=self.high, width=max(1, options.max_width), height=self.height
        )
        rows[-1] = rows[-1].replace(" ", "▁")
        yield Text("\n".join(rows), style=self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_NARROWEST, options.max_width), options.max_width)
