"""How much of a worker is taken, in tasks. A group gives back the place of each episode that ends: where tools are slow
at times most of a group is done long before its last episode, and the engine would idle until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable

# Of a task: shares that are given back one by one do not sum up to exactly nothing.
_ROUNDING = 1e-6


class Occupancy:
    """The places of one worker; `freed` is told when there are more."""

    def __init__(self, *, clock: Callable[[], float], freed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._freed = freed
        self._taken = self._working = 0.0
        self._changed_at = self._looked_at = clock()
        self._task_seconds = 0.0

    @property
    def load(self) -> int:
        """Tasks' worth of places that are taken, rounded up: of a task of which half the episodes have ended, half."""
        return math.ceil(self._taken - _ROUNDING)

    def free(self, allowed: int) -> int:
        """Whole tasks that there is still room for."""
        return int(allowed - self._taken + _ROUNDING)

    def take(self) -> TaskPlaces:
        """The places of one more task."""
        self._taken += 1.0
        return TaskPlaces(self)

    def since_last(self) -> float:
        """Tasks' worth of episodes that ran, on average since the last look. A look at one moment would fall too often
        on the one after a step, when tasks have just come. Tasks that wait for weights do not count: more workers would
        not help them.
        """
        self.work(0.0)
        elapsed = self._changed_at - self._looked_at
        mean = self._task_seconds / elapsed if elapsed > 0 else self._working
        self._task_seconds, self._looked_at = 0.0, self._changed_at
        return mean

    def work(self, tasks: float) -> None:
        """So much more of it, or less."""
        now = self._clock()
        self._task_seconds += self._working * (now - self._changed_at)
        self._working, self._changed_at = max(0.0, self._working + tasks), now

    def release(self, tasks: float) -> None:
        self._taken = max(0.0, self._taken - tasks)
        self._freed()


class TaskPlaces:
    """What one task still holds."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._held = 1.0
        self._begun = False

    def begin(self) -> None:
        """Its episodes run."""
        self._begun = True
        self._occupancy.work(self._held)

    def episode_ended(self, *, group_size: int) -> None:
        """One of so many. Groups of an evaluation may be of another size than those of training.

        The last place is kept until the task is settled: groups that cannot be stored must not pile up.
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
