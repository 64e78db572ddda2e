"""One record of a step's times, however many ranks tell theirs."""

from __future__ import annotations

from tests.support.dataflow.books import ledger
from trimtab.dataflow.ledger.records import StepTimed, TrainerAttempt
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.dataflow.reported_times import ReportedTimes
from trimtab.fabric.wire.lease import BatchRequest, StepTiming

RANKS = 4


class Trainer:
    """Ranks that speak, and the records that come of it, each applied at once."""

    def __init__(self, *, ranks: int = RANKS) -> None:
        books = ledger()
        books.apply(TrainerAttempt(policy="solver", attempt=0, world_size=ranks))
        self.books: TrainerBooks = books.trainers["solver"]
        self.times = ReportedTimes()

    def says(self, rank: int, *, trained: int, attempt: int = 0, seconds: float = 1.0) -> list[StepTimed]:
        timing = StepTiming(wait_seconds=seconds, step_seconds=4 * seconds)
        request = BatchRequest(
            job="job", policy="solver", step=trained, rank=rank, world_size=RANKS, attempt=attempt, previous=timing
        )
        self.times.hear(request, self.books)
        records = []
        while (record := self.times.due(self.books, now=9.0)) is not None:
            records.append(record)
            self.books.time(record)
        return records


def timed(step: int, *, ranks: int, seconds: float) -> StepTimed:
    return StepTimed(policy="solver", step=step, ranks=ranks, wait_seconds=seconds, step_seconds=4 * seconds, at=9.0)


def test_a_step_has_one_record_with_the_sums_of_all_ranks() -> None:
    trainer = Trainer()
    for rank in range(RANKS - 1):
        assert trainer.says(rank, trained=1, seconds=rank + 1.0) == []
    assert trainer.says(0, trained=1, seconds=1.0) == [], "the same rank once more, as for the next portion"
    assert trainer.says(RANKS - 1, trained=1, seconds=4.0) == [timed(0, ranks=4, seconds=10.0)]
    assert trainer.says(2, trained=1) == [], "written down already"


def test_ranks_that_told_a_process_that_is_gone_are_not_waited_for() -> None:
    trainer = Trainer()
    trainer.says(0, trained=1)
    trainer.times = ReportedTimes()
    assert trainer.says(1, trained=1) == []
    assert trainer.says(2, trained=1) == []
    assert trainer.says(0, trained=2) == [timed(0, ranks=2, seconds=2.0)]
    assert [trainer.says(rank, trained=2) for rank in (1, 2)] == [[], []]
    assert trainer.says(3, trained=2) == [timed(1, ranks=4, seconds=4.0)]


def test_a_new_attempt_begins_anew() -> None:
    trainer = Trainer()
    for rank in range(RANKS - 1):
        trainer.says(rank, trained=1, seconds=100.0)
    for rank in range(RANKS - 1):
        assert trainer.says(rank, trained=1, attempt=1) == []
    assert trainer.says(RANKS - 1, trained=1, attempt=1) == [timed(0, ranks=4, seconds=4.0)]
