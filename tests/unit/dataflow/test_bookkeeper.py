"""The bookkeeper's order of things, with a journal that can be held up and made to fail: no server does that on cue."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.support.dataflow.books import GROUP, header, ledger
from tests.support.polling import within
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper, BooksBroken
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsDropped, Record, TasksIssued
from trimtab.dataflow.ledger.snapshot import LedgerSnapshot
from trimtab.fabric.bus.errors import BusTimeout


class SlowJournal:
    def __init__(self) -> None:
        self.written: list[Record] = []
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        self.grown = False
        self.snapshots = 0
        self.stalled_since: float | None = None
        self.snapshot_bytes = 0

    async def write(self, record: Record) -> None:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.written.append(record)

    async def compact(self, snapshot: LedgerSnapshot) -> None:
        self.snapshots += 1


def made() -> tuple[Bookkeeper, SlowJournal]:
    journal = SlowJournal()
    return Bookkeeper(ledger(), cast(Journal, journal)), journal


def issue_once(books: Ledger) -> TasksIssued | None:
    return TasksIssued(first=0, count=2) if books.issued == 0 else None


async def test_of_two_that_want_the_same_one_decides_and_the_other_sees_it() -> None:
    books, journal = made()
    both = [asyncio.create_task(books.record(issue_once)) for _ in range(2)]
    await asyncio.sleep(0)
    journal.gate.set()
    assert await asyncio.gather(*both) == [TasksIssued(first=0, count=2), None]
    assert len(journal.written) == 1


async def test_nothing_is_applied_before_it_is_written() -> None:
    books, journal = made()
    writing = asyncio.create_task(books.record(issue_once))
    await asyncio.sleep(0)
    assert books.ledger.issued == 0
    for index in range(GROUP):  # samples arrive all the while
        books.arrived(index + 1, f"t0.solver.{index}", header(0, index))
    journal.gate.set()
    await writing
    assert books.ledger.issued == 2
    assert books.ledger.trainers["solver"].buffered == 1


async def test_a_write_of_unknown_outcome_closes_the_books() -> None:
    books, journal = made()
    journal.failure = BusTimeout("no answer")
    writing = asyncio.create_task(books.record(issue_once))
    waiting = asyncio.create_task(books.record(issue_once))
    await asyncio.sleep(0)
    journal.gate.set()
    outcome, second = await within(asyncio.gather(writing, waiting, return_exceptions=True), 5.0)
    assert isinstance(outcome, BusTimeout)
    assert isinstance(second, BooksBroken)
    assert books.ledger.issued == 0
    assert journal.written == []
    with pytest.raises(BooksBroken):
        await within(books.broken(), 1.0)


async def test_a_record_is_written_to_its_end_when_whoever_asked_has_gone() -> None:
    books, journal = made()
    asking = asyncio.create_task(books.record(issue_once))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    waiting = asyncio.create_task(books.record(issue_once))
    journal.gate.set()
    assert await within(waiting, 1.0) is None, "it sees what the first has decided"
    assert journal.written == [TasksIssued(first=0, count=2)]
    assert books.ledger.issued == 2


async def test_a_store_that_is_nearly_full_is_compacted_when_something_may_be_deleted() -> None:
    books, journal = made()
    journal.gate.set()
    await books.record(lambda _: TasksIssued(first=0, count=1))
    for index in range(GROUP):
        books.arrived(index + 1, f"t0.solver.{index}", header(0, index))
    assert not await books.compact(dict)
    assert not await books.compact(dict, pressed=True), "the group is still needed"
    await books.record(lambda _: GroupsDropped(policy="solver", step=0, dropped=("t0.solver",)))
    assert not await books.compact(dict)
    assert await books.compact(dict, pressed=True)
    assert not await books.compact(dict, pressed=True), "not again for the same"


async def test_a_change_wakes_whoever_waits() -> None:
    books, journal = made()
    journal.gate.set()
    waiting = asyncio.create_task(books.changed(timeout_s=60.0))
    await asyncio.sleep(0)
    await books.record(issue_once)
    await within(waiting, 1.0)
    await within(books.changed(timeout_s=0.01), 1.0)


async def test_a_completed_group_is_news_only_when_it_makes_a_batch() -> None:
    books, journal = made()
    journal.gate.set()
    await books.record(lambda _: TasksIssued(first=0, count=2))
    waiting = asyncio.create_task(books.changed(timeout_s=60.0))
    await asyncio.sleep(0)
    for index in range(GROUP):
        books.arrived(index + 1, f"t0.solver.{index}", header(0, index))
    await asyncio.sleep(0)
    assert not waiting.done()
    for index in range(GROUP):
        books.arrived(index + 3, f"t1.solver.{index}", header(1, index))
    await within(waiting, 1.0)


async def test_few_records_of_very_long_rows_are_compacted_too() -> None:
    """Rows lie in the stream until a snapshot lets them go: a thousand of a megabyte must not wait for many records."""
    books, journal = made()
    assert not await books.compact(dict)
    books.ledger.trainers["solver"].consumed_tokens += 20_000_000
    assert await books.compact(dict)
    assert not await books.compact(dict), "not again for the same"
    journal.grown = True
    assert await books.compact(dict)
    assert journal.snapshots == 2


async def test_few_records_of_very_many_rows_are_compacted_too() -> None:
    """Who recovers reads all their headers. But a snapshot that is larger than those is not written for them."""
    books, journal = made()
    solver = books.ledger.trainers["solver"]
    solver.consumed_samples += 30_000
    assert not await books.compact(dict)
    solver.consumed_samples += 3_000
    assert await books.compact(dict)
    journal.snapshot_bytes = 256 * 50_000
    solver.consumed_samples += 40_000
    assert not await books.compact(dict)
    solver.consumed_samples += 10_000
    assert await books.compact(dict)
