"""Collects what the ranks of a trainer say of a step, until all of them have: the ledger gets one record of it."""

from __future__ import annotations

from trimtab.dataflow.ledger.records import StepTimed
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.fabric.wire.lease import BatchRequest, StepTiming


class ReportedTimes:
    """Of one trainer. Held in memory only: what a process that ends had heard of a step is missing from its record, and
    the ranks that speak to the next one stand for all.
    """

    def __init__(self) -> None:
        self._by_step: dict[int, dict[int, StepTiming]] = {}
        self._attempt = -1

    def hear(self, request: BatchRequest, books: TrainerBooks) -> None:
        if request.attempt > self._attempt:
            self._attempt = request.attempt
            self._by_step.clear()
        step = request.trained_steps - 1
        if request.previous is not None and books.wants_time(step):
            self._by_step.setdefault(step, {})[request.rank] = request.previous

    def due(self, books: TrainerBooks, *, now: float) -> StepTimed | None:
        """The record of a step of which all ranks have spoken, or, if one speaks of a later step already, those that
        will: ranks are never a step apart.
        """
        for step in sorted(self._by_step):
            if not books.wants_time(step):
                del self._by_step[step]
                continue
            times = self._by_step[step].values()
            if len(times) >= books.world_size or step < max(self._by_step):
                return StepTimed(
                    policy=books.policy,
                    step=step,
                    ranks=len(times),
                    wait_seconds=sum(time.wait_seconds for time in times),
                    step_seconds=sum(time.step_seconds for time in times),
                    at=now,
                )
        return None
