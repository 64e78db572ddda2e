"""How every benchmark reports: notes while it runs on stderr, and one JSON line with its figures and bars on stdout."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog


@dataclass(frozen=True)
class Bar:
    """A figure with the goal it has to reach; `at_most` for figures where less is better."""

    value: float
    goal: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def logs_to_stderr() -> None:
    """Standard output is for the one JSON line."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def interleaved(contenders: dict[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Runs A B, B A, A B, …: a machine that slows down or warms up does it to all contenders alike."""
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        order = list(contenders) if turn % 2 == 0 else list(reversed(contenders))
        for name in order:
            results[name].append(contenders[name]())
    return results


def paired_share(ours: Sequence[float], raw: Sequence[float]) -> float:
    """The median over rounds of ours/raw: each pair ran back to back, so slow phases of the machine cancel out."""
    return statistics.median(mine / theirs for mine, theirs in zip(ours, raw, strict=True))


def report(benchmark: str, figures: dict[str, object], bars: dict[str, Bar]) -> None:
    rated = {
        name: {
            "value": round(bar.value, 4),
            "goal": bar.goal,
            "ok": bar.ok,
            **({"at_most": True} if bar.at_most else {}),
        }
        for name, bar in bars.items()
    }
    print(json.dumps({"benchmark": benchmark, **figures, "bars": rated}), flush=True)
