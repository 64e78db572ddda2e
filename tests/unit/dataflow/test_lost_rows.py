"""What the books make of rows that were acknowledged and are gone: nothing waits for them or is trained twice."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.dataflow.books import Feed, ledger
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.lost_rows import given_up, lost_tasks, replay
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew, Record, StepDurable, StepGranted, TasksIssued

NOW = 1000.0


class Job(Feed):
    """Steps of two groups; the records are kept, and the groups that have come, as the streams would."""

    def __init__(self) -> None:
        super().__init__(ledger())
        self.records: list[Record] = []
        self.brought: list[int] = []

    def write(self, record: Record) -> None:
        self.records.append(record)
        self.ledger.apply(record)

    def bring(self, *tasks: int) -> None:
        for task in tasks:
            self.complete(task)
            self.brought.append(task)

    def grant(self) -> None:
        granted = self.ledger.propose("solver", now=NOW)
        assert isinstance(granted, StepGranted)
        self.write(granted)

    def recovered(self, *, lost: Sequence[int] = ()) -> tuple[Ledger, str | None]:
        """From the records, and what is left of the groups."""
        feed = Feed(ledger())
        feed.ledger.begin_replay()
        for task in self.brought:
            if task not in lost:
                feed.complete(task)
        return feed.ledger, replay(feed.ledger, self.records, gone=None)


def trained_three_steps() -> Job:
    """Two of them durable; the third has groups 4 and 5, and 6 is under way."""
    job = Job()
    job.write(TasksIssued(first=0, count=4))
    job.bring(0, 1, 2, 3)
    job.grant()
    job.grant()
    job.write(StepDurable(policy="solver", step=1))
    job.write(TasksIssued(first=4, count=3))
    job.bring(4, 5)
    job.grant()
    return job


def test_where_nothing_is_lost_the_books_go_on_as_they_were() -> None:
    books, gone = trained_three_steps().recovered()
    assert gone is None
    assert given_up(books, queued={"t6"}, gone=gone, now=NOW) == []
    assert books.trainers["solver"].next_step == 3


def test_a_step_whose_rows_are_gone_is_taken_back_to_the_last_that_is_durable() -> None:
    job = trained_three_steps()
    books, gone = job.recovered(lost=[5])
    assert gone == "solver: step 2 takes group t5.solver, which is not in the buffer"
    (record,) = given_up(books, queued={"t6"}, gone=gone, now=NOW)
    assert (record.step, record.was_at, record.lost_rows) == (2, 2, True)
    assert record.given_up == 3, "two that were granted or waited, and one under way"
    assert record.issued > 7
    job.write(record)
    job.write(TasksIssued(first=record.issued, count=2))
    job.bring(record.issued, record.issued + 1)
    # Whoever recovers later passes over the same records, and finds what came after.
    books, gone = job.recovered(lost=[5])
    assert gone is None
    assert given_up(books, queued=(), gone=gone, now=NOW) == []
    assert (books.anchored_anew, books.given_up_groups) == (1, 3)
    books.end_replay()
    granted = books.propose("solver", now=NOW)
    assert isinstance(granted, StepGranted)
    assert granted.step == 2
    assert granted.groups == tuple(f"t{record.issued + place}.solver" for place in range(2))


def test_a_task_that_has_left_the_queue_without_its_rows_is_given_up() -> None:
    job = trained_three_steps()
    job.write(TasksIssued(first=7, count=1))
    books, gone = job.recovered()
    assert gone is None
    assert lost_tasks(books, {"t6"}) == []
    assert lost_tasks(books, ()) == [6], "the newest are sent again"
    (record,) = given_up(books, queued=(), gone=None, now=NOW)
    assert (record.step, record.was_at) == (2, 3)
    books.apply(record)
    assert books.running_groups("solver") == 0
    assert books.capacity_tasks() > 0


def test_a_policy_that_has_finished_stays_so() -> None:
    job = Job()
    job.write(TasksIssued(first=0, count=2))
    job.ledger.trainers["solver"].finish("maxSteps 0 done")
    assert given_up(job.ledger, queued=(), gone="all", now=NOW) == []


def test_the_number_of_the_next_task_is_one_that_was_never_used() -> None:
    job = Job()
    job.write(LedgerAnchoredAnew(policy="solver", step=0, was_at=0, issued=1 << 50, given_up=0, at=NOW))
    (record,) = given_up(job.ledger, queued=(), gone="all", now=NOW)
    assert record.issued > 1 << 50
