"""How many tasks a worker may have at once, by how its engines bear them, and how many it has.

The limit goes back in multiplicative steps and up in additive ones: that finds a capacity which is not known in advance
and changes with the length of what is generated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from trimtab.rollout.engines.contract import EngineError, EngineUnavailable, SamplingEngine
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate

_log = structlog.get_logger(__name__)
# Shares of the engine's cache. Above the first, requests will soon be thrown out of it; below the second there is room.
_CACHE_FULL = 0.95
_CACHE_ROOMY = 0.85
_LEAST_STEP_BACK = 0.9
_MOST_STEP_BACK = 0.5
_STEP_BACK = 0.7
_STEP_UP = 1.0
_LOAD_DEADLINE_S = 2.0
# Of a task: shares that are given back one by one do not add up to exactly one.
_ROUNDING = 1e-6


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


class LoadWatch:
    """Looks at the load of one engine every second. When the engine does not answer, its load is unknown. It may come
    back with other weights, so the sampler is told that it was lost before a request is wasted on them.
    """

    def __init__(
        self,
        name: str,
        engine: SamplingEngine,
        sampler: PolicySampler,
        gate: VersionGate,
        concurrency: Concurrency,
        *,
        in_flight: Callable[[], int],
        every_s: float = 1.0,
    ) -> None:
        self._name = name
        self._engine = engine
        self._sampler = sampler
        self._gate = gate
        self._concurrency = concurrency
        self._in_flight = in_flight
        self._every_s = every_s
        self._overloads = sampler.overloads

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            if not self._gate.swapping:
                await self._look()

    async def _look(self) -> None:
        try:
            load = await self._engine.load(timeout_s=_LOAD_DEADLINE_S)
        except EngineError as error:
            _log.info("load_unknown", engine=self._name, error=str(error))
            if isinstance(error, EngineUnavailable):
                self._sampler.lose()
            return
        if self._gate.swapping:
            return  # what waits in a pause does not wait for want of room
        overloads = self._sampler.overloads
        sample = LoadSample(
            running=load.running,
            waiting=load.waiting,
            token_usage=load.token_usage,
            overloads=overloads - self._overloads,
        )
        self._overloads = overloads
        before = self._concurrency.limit
        self._concurrency.note(self._name, sample, in_flight=self._in_flight())
        if self._concurrency.limit < before:
            _log.info(
                "fewer_tasks",
                engine=self._name,
                limit=self._concurrency.limit,
                running=sample.running,
                waiting=sample.waiting,
                token_usage=round(sample.token_usage, 3),
                overloads=sample.overloads,
            )


class Occupancy:
    """How much of a worker is taken, in tasks; `freed` is called when there is more room. A group gives back its share
    episode by episode: with tools that are slow at times, most of a group is done long before its last episode, and the
    engine would idle until then.
    """

    def __init__(self, *, clock: Callable[[], float], freed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._freed = freed
        self._taken = self._working = 0.0
        self._changed_at = self._looked_at = clock()
        self._task_seconds = 0.0

    @property
    def load(self) -> int:
        """Tasks that are taken, rounded up. A task of which half the episodes have ended counts half."""
        return math.ceil(self._taken - _ROUNDING)

    def free(self, allowed: int) -> int:
        """Whole tasks that there is still room for."""
        return int(allowed - self._taken + _ROUNDING)

    def take(self) -> TaskOccupancy:
        """Room for one more task."""
        self._taken += 1.0
        return TaskOccupancy(self)

    def since_last(self) -> float:
        """The mean number of tasks whose episodes ran since the last look. A look at one moment would too often fall on
        the moment after a step, when tasks have just come. Tasks that wait for weights do not count: more workers would
        not help them.
        """
        self.work(0.0)
        elapsed = self._changed_at - self._looked_at
        mean = self._task_seconds / elapsed if elapsed > 0 else self._working
        self._task_seconds, self._looked_at = 0.0, self._changed_at
        return mean

    def work(self, tasks: float) -> None:
        """So many more tasks run, or fewer where the number is negative."""
        now = self._clock()
        self._task_seconds += self._working * (now - self._changed_at)
        self._working, self._changed_at = max(0.0, self._working + tasks), now

    def release(self, tasks: float) -> None:
        self._taken = max(0.0, self._taken - tasks)
        self._freed()


class TaskOccupancy:
    """What one task still takes."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._held = 1.0
        self._begun = False

    def begin(self) -> None:
        """Its episodes run."""
        self._begun = True
        self._occupancy.work(self._held)

    def episode_ended(self, *, group_size: int) -> None:
        """One of `group_size`. Groups of an evaluation may be of another size than those of training.

        The last share is kept until the task is settled: groups that cannot be stored must not pile up.
        """
        if self._held > 1.5 / group_size:
            self._give_back(1 / group_size)

    def vacate(self) -> None:
        """The task is settled, however many of its episodes were run."""
        self._give_back(self._held)

    def _give_back(self, share: float) -> None:
        self._held -= share
        if self._begun:
            self._occupancy.work(-share)
        self._occupancy.release(share)
