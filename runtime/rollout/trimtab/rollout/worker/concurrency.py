"""How many tasks a worker may have at once, by how its engines bear them.

Multiplicative steps back, additive steps up: the way to a capacity that nobody knows and that changes with the length
of what is generated.
"""

from __future__ import annotations

from dataclasses import dataclass

# Shares of the engine's cache. Above the first, requests will soon be thrown out of it; below the second there is room.
_CACHE_FULL = 0.95
_CACHE_ROOMY = 0.85
_LEAST_STEP_BACK = 0.9
_MOST_STEP_BACK = 0.5
_STEP_BACK = 0.7
_STEP_UP = 1.0


@dataclass(frozen=True, kw_only=True)
class LoadSample:
    """One look at an engine."""

    running: int
    waiting: int
    token_usage: float
    overloads: int
    """Requests that it turned away since the look before."""


def next_limit(
    limit: float, before: LoadSample, now: LoadSample, *, in_flight: int, tolerated: int, ceiling: int
) -> float:
    """The limit after another look. A queue counts if it was there at two looks, and is of more than `tolerated`
    requests: a shorter one keeps the engine busy when a request ends.
    """
    waiting = min(before.waiting, now.waiting)
    queued = waiting > tolerated
    if queued or now.overloads or now.token_usage > _CACHE_FULL:
        if in_flight > limit:
            return limit  # the step back before this one has not taken effect yet
        share = now.running / (now.running + now.waiting) if queued else _STEP_BACK
        return max(1.0, min(limit, in_flight) * min(_LEAST_STEP_BACK, max(_MOST_STEP_BACK, share)))
    if waiting == 0 and now.token_usage < _CACHE_ROOMY and in_flight >= int(limit):
        return min(float(ceiling), limit + _STEP_UP)
    return limit


class Concurrency:
    """All engines of a worker; the one that bears least decides. It begins with the ceiling: an engine that is asked
    for too much queues or refuses, which costs little, and a slow beginning costs every job.
    """

    def __init__(self, *, ceiling: int, requests_per_task: int) -> None:
        self.ceiling = ceiling
        self._requests_per_task = requests_per_task
        self._limits: dict[str, float] = {}
        self._before: dict[str, LoadSample] = {}

    @property
    def limit(self) -> int:
        """Tasks, from 1 to the ceiling."""
        return int(min(self._limits.values(), default=self.ceiling))

    def note(self, engine: str, sample: LoadSample, *, in_flight: int) -> None:
        """A look at one engine while the worker has so many tasks."""
        self._limits[engine] = next_limit(
            self._limits.get(engine, float(self.ceiling)),
            self._before.get(engine, sample),
            sample,
            in_flight=in_flight,
            tolerated=self._requests_per_task,
            ceiling=self.ceiling,
        )
        self._before[engine] = sample
