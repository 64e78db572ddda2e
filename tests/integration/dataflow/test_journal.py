"""The ledger's journal on a real stream: lost acknowledgements, second writers, and records that are not its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.support.dataflow.books import ledger
from trimtab.dataflow.ledger.authorship import HEADER, JournalKey
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper, BooksBroken
from trimtab.dataflow.ledger.journal import AnotherWriter, Journal
from trimtab.dataflow.ledger.records import SnapshotPart, TasksIssued
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_job, delete_message
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode

KEY = JournalKey("of the dataflow and of no one else")


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
    journal = Journal(bus, topology, incarnation="one", key=KEY)
    await journal.recover(ledger())
    await journal.write(TasksIssued(first=0, count=1))
    repeated = TasksIssued(first=1, count=1)
    code = KEY.code(encode(repeated), stream=topology.ledger.name, sequence=2)
    headers = {"Nats-Expected-Last-Sequence": "1", HEADER: code}
    await publish(bus, topology.ledger_subject, encode(repeated), message_id="one-2", headers=headers)
    await journal.write(repeated)
    await journal.write(TasksIssued(first=2, count=1))
    await journal.confirm()
    recovered = ledger()
    await Journal(bus, topology, incarnation="two", key=KEY).recover(recovered)
    assert recovered.issued == 3


async def test_of_two_writers_one_is_told_and_writes_nothing(bus: Bus, topology: JobTopology) -> None:
    first, second = (Journal(bus, topology, incarnation=name, key=KEY) for name in ("one", "two"))
    for journal in (first, second):
        await journal.recover(ledger())
    await first.write(TasksIssued(first=0, count=1))
    with pytest.raises(AnotherWriter):
        await second.write(TasksIssued(first=0, count=7))
    with pytest.raises(AnotherWriter, match="is at 1, this process at 0"):
        await second.confirm()
    await first.confirm()
    recovered = ledger()
    await Journal(bus, topology, incarnation="three", key=KEY).recover(recovered)
    assert recovered.issued == 1


async def test_books_that_may_disagree_with_the_journal_are_closed(bus: Bus, topology: JobTopology) -> None:
    first, second = (Journal(bus, topology, incarnation=name, key=KEY) for name in ("one", "two"))
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


FOREIGN: dict[str, bytes] = {
    "no record": b'{"type":"io.nats.jetstream.api.v1.stream_info_response"}',
    "nothing": b"",
    "a forged record": encode(TasksIssued(first=0, count=1000)),
    "a forged snapshot": encode(SnapshotPart(number=0, count=1, body=b"\x28\xb5\x2f\xfd" + b"0" * 100)),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
async def test_what_others_wrote_counts_for_nothing_and_stops_nothing(
    bus: Bus, topology: JobTopology, foreign: bytes
) -> None:
    """Before the first record, between two, as the last, and while the journal is open."""
    found: list[int] = []
    await publish(bus, topology.ledger_subject, foreign, message_id="a")
    journal = Journal(bus, topology, incarnation="one", key=KEY, on_foreign=found.append)
    await journal.recover(ledger())
    await journal.write(TasksIssued(first=0, count=1))
    await publish(bus, topology.ledger_subject, foreign, message_id="b")
    await publish(bus, topology.ledger_subject, foreign, message_id="c")
    await journal.write(TasksIssued(first=1, count=1))
    await publish(bus, topology.ledger_subject, foreign, message_id="d")
    await journal.confirm()
    assert sum(found) == 4
    recovered = ledger()
    again: list[int] = []
    successor = Journal(bus, topology, incarnation="two", key=KEY, on_foreign=again.append)
    await successor.recover(recovered)
    assert (recovered.issued, sum(again)) == (2, 4)
    await successor.write(TasksIssued(first=2, count=1))
    with pytest.raises(AnotherWriter):
        await journal.write(TasksIssued(first=2, count=1))


async def test_a_record_of_ones_own_at_another_place_is_not_ones_own(bus: Bus, topology: JobTopology) -> None:
    """Nor is one of a stream of another name, as of another job with the same key."""
    journal = Journal(bus, topology, incarnation="one", key=KEY)
    await journal.recover(ledger())
    await journal.write(TasksIssued(first=0, count=1))
    (first,) = [one async for one in records_of(bus, topology)]
    copied = {HEADER: first.headers[HEADER]}
    await publish(bus, topology.ledger_subject, first.payload, message_id="copied", headers=copied)
    elsewhere = KEY.code(first.payload, stream="another", sequence=3)
    await publish(bus, topology.ledger_subject, first.payload, message_id="moved", headers={HEADER: elsewhere})
    recovered = ledger()
    found: list[int] = []
    await Journal(bus, topology, incarnation="two", key=KEY, on_foreign=found.append).recover(recovered)
    assert (recovered.issued, sum(found)) == (1, 2)


async def test_messages_that_were_deleted_from_its_end_do_not_stop_it(bus: Bus, topology: JobTopology) -> None:
    """As when a person removes what others wrote: numbers are not given twice."""
    journal = Journal(bus, topology, incarnation="one", key=KEY)
    await journal.recover(ledger())
    await journal.write(TasksIssued(first=0, count=1))
    await publish(bus, topology.ledger_subject, b"foreign", message_id="a")
    await delete_message(bus, topology.ledger.name, 2, deadline_s=30.0)
    await journal.write(TasksIssued(first=1, count=1))
    recovered = ledger()
    await Journal(bus, topology, incarnation="two", key=KEY).recover(recovered)
    assert recovered.issued == 2


async def records_of(bus: Bus, topology: JobTopology) -> AsyncIterator[Delivery]:
    async with StreamReader(bus, stream=topology.ledger.name) as reader:
        while not reader.caught_up:
            for one in await reader.read(batch=10, wait_s=10.0):
                yield one
