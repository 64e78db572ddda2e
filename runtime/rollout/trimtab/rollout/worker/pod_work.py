"""All that a pod does, as its heartbeat and its metrics tell of it: episodes, stages, or both."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from trimtab.rollout.stages.worker import StageWorker
from trimtab.rollout.worker.worker import Worker


class PodWork:
    """Runs until told to stop. What is counted in samples is that of episodes alone: columns are no samples."""

    def __init__(self, rollouts: Worker | None, stages: Sequence[StageWorker], *, most_tasks: int) -> None:
        """`most_tasks` are those of rollouts that it would run at once."""
        self._rollouts = rollouts
        self._stages = stages
        self._most_tasks = most_tasks

    @property
    def draining(self) -> bool:
        if self._rollouts is not None and self._rollouts.draining.is_set():
            return True
        return any(stage.draining.is_set() for stage in self._stages)

    @property
    def in_flight(self) -> int:
        return sum(stage.in_flight for stage in self._stages) + (self._rollouts.in_flight if self._rollouts else 0)

    @property
    def load(self) -> int:
        """What of `allowance` is taken."""
        return sum(stage.in_flight for stage in self._stages) + (self._rollouts.load if self._rollouts else 0)

    @property
    def capacity(self) -> int:
        """Tasks of rollouts that it would run at once: how busy a fleet is is judged by these. Where there are none,
        groups of stages.
        """
        return sum(stage.ceiling for stage in self._stages) if self._rollouts is None else self._most_tasks

    @property
    def allowance(self) -> int:
        return self.capacity if self._rollouts is None else self._rollouts.allowance

    @property
    def completed(self) -> int:
        return 0 if self._rollouts is None else self._rollouts.completed

    @property
    def failures(self) -> Counter[str]:
        """By kind; those of a stage with its name."""
        found = Counter[str]() if self._rollouts is None else Counter(self._rollouts.failures)
        for stage in self._stages:
            found.update({f"{stage.server.stage}.{kind}"[:64]: count for kind, count in stage.server.failures.items()})
        return found

    def mean_in_flight(self) -> float:
        """Since the last look, of what `capacity` counts."""
        if self._rollouts is None:
            return sum(stage.occupancy.since_last() for stage in self._stages)
        return self._rollouts.occupancy.since_last()

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as works:
            if self._rollouts is not None:
                works.create_task(self._rollouts.run(stopping))
            for stage in self._stages:
                works.create_task(stage.run(stopping))
