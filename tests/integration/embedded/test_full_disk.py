"""A disk that is full beneath a real nats-server: what was acknowledged stays, a ledger's record waits, and all goes on
by itself when there is room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.dataflow.books import ledger
from tests.support.polling import eventually, within
from tests.support.small_disk import SmallDisk, small_disk
from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.records import TasksIssued
from trimtab.embedded.disk_room import RoomLimits
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.admission_hold import held_for, hold_admission
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import JobTopology

_MIB = 1 << 20
_LIMITS = RoomLimits(low_bytes=4 * _MIB, enough_bytes=8 * _MIB)
_TOPOLOGY = JobTopology("default", "small")
_KEY = JournalKey("of the dataflow and of no one else")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", mebibytes=48) as disk:
        yield disk


@pytest.fixture
def server(disk: SmallDisk) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(disk.folder / "nats", room=_LIMITS) as server:
        yield server


@pytest.fixture
async def bus(server: EmbeddedNats) -> AsyncIterator[Bus]:
    async with await Bus.connect(server.settings, name="test") as connected:
        for spec in _TOPOLOGY.streams:
            await declare_stream(connected, spec, deadline_s=60.0)
        yield connected


async def _stored(bus: Bus) -> int:
    info = await api_call(bus, f"STREAM.INFO.{_TOPOLOGY.trajectories.name}", deadline_s=30.0)
    return int(info["state"]["messages"])


async def _put_until_refused(bus: Bus) -> int:
    """How many were acknowledged."""
    for number in range(1000):
        try:
            await publish(
                bus,
                _TOPOLOGY.trajectory_subject("solver"),
                os.urandom(200_000),
                message_id=f"m{number}",
                deadline_s=3.0,
            )
        except (BusTimeout, BusUnavailable):
            return number
    raise AssertionError("the disk was never full")


async def test_a_full_disk_is_told_and_heals_without_losing_what_was_acknowledged(
    disk: SmallDisk, server: EmbeddedNats, bus: Bus
) -> None:
    journal = Journal(bus, _TOPOLOGY, incarnation="one", key=_KEY)
    books = Bookkeeper(ledger(), journal)
    await journal.recover(books.ledger)
    await books.record(lambda _: TasksIssued(first=0, count=1))
    assert not server.look_at_disk().is_short

    disk.fill(leaving=8 * _MIB)
    acknowledged = await _put_until_refused(bus)
    assert server.look_at_disk().is_short
    disk.fill()
    # The ledger's own file may have a little room left.
    written = 1
    while True:
        waiting = asyncio.create_task(books.record(lambda ledger: TasksIssued(first=ledger.issued, count=1)))
        await asyncio.wait([waiting], timeout=3.0)
        if not waiting.done():
            break
        written += 1
    assert not waiting.done(), "the ledger waits, and is not told that its record is safe"

    disk.free()
    room = server.look_at_disk()
    assert room.is_mended
    assert not room.is_short
    await within(waiting, 60.0)
    assert server.restarts == 1
    assert books.stalled_since is None
    await publish(bus, _TOPOLOGY.trajectory_subject("solver"), b"x", message_id="after", deadline_s=60.0)
    assert await _stored(bus) >= acknowledged + 1, "what was not acknowledged may have been stored all the same"
    recovered = ledger()
    await Journal(bus, _TOPOLOGY, incarnation="two", key=_KEY).recover(recovered)
    assert recovered.issued == books.ledger.issued == written + 1


async def test_a_server_on_a_disk_that_is_mostly_its_own_starts_again_and_takes_more(
    disk: SmallDisk, server: EmbeddedNats, bus: Bus
) -> None:
    """By itself it would limit itself to three quarters of what is free, and refuse all."""
    for number in range(130):
        await publish(bus, _TOPOLOGY.trajectory_subject("solver"), os.urandom(200_000), message_id=f"m{number}")
    server.kill()
    await eventually(lambda: server.restarts == 1 and server.answers(), timeout_s=60.0)
    await publish(bus, _TOPOLOGY.trajectory_subject("solver"), os.urandom(200_000), message_id="more", deadline_s=60.0)
    assert await _stored(bus) == 131


async def test_a_note_to_admit_no_tasks_is_read_until_it_runs_out_or_is_taken_back(bus: Bus) -> None:
    async def held(now: float) -> str | None:
        return await held_for(bus, _TOPOLOGY, now=now, deadline_s=60.0)

    assert await held(1000.0) is None
    await hold_admission(bus, _TOPOLOGY, "the disk is full", now=1000.0, deadline_s=60.0)
    assert await held(1001.0) == "the disk is full"
    await declare_stream(bus, _TOPOLOGY.tasks, deadline_s=60.0)
    assert await held(1119.0) == "the disk is full", "declaring the stream again leaves the note alone"
    assert await held(1121.0) is None
    await hold_admission(bus, _TOPOLOGY, None, now=1000.0, deadline_s=60.0)
    assert await held(1001.0) is None
