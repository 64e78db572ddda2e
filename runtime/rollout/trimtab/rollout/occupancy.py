"""How many tasks a worker had on average. A look at one moment would fall too often on the one after a step, when new
tasks have just come.
"""

from __future__ import annotations

from collections.abc import Callable


class Occupancy:
    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tasks = 0
        self._changed_at = self._looked_at = clock()
        self._task_seconds = 0.0

    def note(self, tasks: int) -> None:
        """From now on it has so many."""
        now = self._clock()
        self._task_seconds += self._tasks * (now - self._changed_at)
        self._tasks, self._changed_at = tasks, now

    def since_last(self) -> float:
        """The mean since the last look."""
        self.note(self._tasks)
        elapsed = self._changed_at - self._looked_at
        mean = self._task_seconds / elapsed if elapsed > 0 else float(self._tasks)
        self._task_seconds, self._looked_at = 0.0, self._changed_at
        return mean
