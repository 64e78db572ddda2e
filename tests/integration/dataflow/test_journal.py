"""The ledger's journal on a real stream: lost acknowledgements and second writers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.support.dataflow.books import ledger
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper, BooksBroken
from trimtab.dataflow.ledger.journal import AnotherWriter, Journal
from trimtab.dataflow.ledger.records import TasksIssued
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


@pytest.fixture
async def topology(bus: Bus) -> JobTopology:
    made = JobTopology("default", f"j{uuid4().hex[:10]}")
    await declare_job(bus, made, deadline_s=60.0)
    return made


async def test_a_record_whose_acknowledgement_was_lost_meets_itself(bus: Bus, topology: JobTopology) -> None:
    journal = Journal(bus, topology, incarnation="one")
    await journal.recover(ledger())
    await journal.write(TasksIssued(first=0, count=1))
    repeated = TasksIssued(first=1, count=1)
    headers = {"Nats-Expected-Last-Sequence": "1"}
    await publish(bus, topology.ledger_subject, encode(repeated), message_id="one-2", headers=headers)
    await journal.write(repeated)
    await journal.write(TasksIssued(first=2, count=1))
    await journal.confirm()
    recovered = ledger()
    await Journal(bus, topology, incarnation="two").recover(recovered)
    assert recovered.issued == 3


async def test_of_two_writers_one_is_told_and_writes_nothing(bus: Bus, topology: JobTopology) -> None:
    first, second = (Journal(bus, topology, incarnation=name) for name in ("one", "two"))
    for journal in (first, second):
        await journal.recover(ledger())
    await first.write(TasksIssued(first=0, count=1))
    with pytest.raises(AnotherWriter):
        await second.write(TasksIssued(first=0, count=7))
    with pytest.raises(AnotherWriter, match="is at 1, this process at 0"):
        await second.confirm()
    await first.confirm()
    recovered = ledger()
    await Journal(bus, topology, incarnation="three").recover(recovered)
    assert recovered.issued == 1


async def test_books_that_may_disagree_with_the_journal_are_closed(bus: Bus, topology: JobTopology) -> None:
    first, second = (Journal(bus, topology, incarnation=name) for name in ("one", "two"))
    for journal in (first, second):
        await journal.recover(ledger())
    books = Bookkeeper(ledger(), second)
    await first.write(TasksIssued(first=0, count=1))
    with pytest.raises(AnotherWriter):
        await books.record(lambda _: TasksIssued(first=0, count=7))
    assert books.ledger.issued == 0
    with pytest.raises(BooksBroken):
        await books.record(lambda _: TasksIssued(first=0, count=1))
    with pytest.raises(BooksBroken):
        await books.broken()
