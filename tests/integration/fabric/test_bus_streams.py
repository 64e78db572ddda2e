"""Streams, publishing, pulling and direct reads against a real JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.polling import patiently
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery, Settlement
from trimtab.fabric.bus.direct_get import get_in_pieces, get_messages
from trimtab.fabric.bus.errors import (
    BusNotFound,
    BusTimeout,
    BusUnavailable,
    InvalidName,
    PayloadTooLarge,
    StreamFull,
    TopologyMismatch,
)
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import (
    declare_consumer,
    declare_job,
    declare_stream,
    delete_message,
    delete_stream,
)
from trimtab.fabric.bus.topology import ConsumerSpec, DeliverFrom, JobTopology, Storage, StreamSpec
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.settings import NatsSettings

D = 60.0


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


@pytest.fixture
async def stream(bus: Bus) -> AsyncIterator[StreamSpec]:
    name = f"S{uuid.uuid4().hex[:12]}"
    spec = StreamSpec(name=name, subjects=(f"{name}.>",), allow_direct=True)
    await declare_stream(bus, spec, deadline_s=D)
    yield spec
    await delete_stream(bus, name, deadline_s=D)


@pytest.fixture
async def patient_bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    """A question that is asked again after two seconds gets the answer that the first had changed."""
    async with await Bus.connect(nats_settings, name="patient", attempt_timeout_s=D) as connected:
        yield connected


async def pull_all(puller: Puller, count: int, **bounds: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    async with patiently(30.0):
        while len(deliveries) < count:
            deliveries += await puller.fetch(batch=count - len(deliveries), wait_s=5.0, **bounds)
    return deliveries


async def fill(bus: Bus, stream: StreamSpec, count: int, *, size: int = 10) -> None:
    async with WindowedPublisher(bus, max_messages=64, max_bytes=8 << 20) as publisher:
        for number in range(count):
            await publisher.publish(
                f"{stream.name}.x", bytes([number % 256]) * size, message_id=f"m{number}", headers={"N": str(number)}
            )


async def test_declaring_a_job_twice_changes_nothing(patient_bus: Bus) -> None:
    topology = JobTopology("team.a", f"job_{uuid.uuid4().hex}")
    await declare_job(patient_bus, topology, deadline_s=D)
    await publish(patient_bus, topology.task_subject("main"), b"1", message_id="1")
    await declare_job(patient_bus, topology, deadline_s=D)
    info = await api_call(patient_bus, f"STREAM.INFO.{topology.tasks.name}", deadline_s=D)
    assert info["state"]["messages"] == 1
    assert info["config"]["retention"] == "workqueue"
    names = [stream.name for stream in topology.streams] + [bucket.stream for bucket in topology.buckets]
    for name in names:
        assert await delete_stream(patient_bus, name, deadline_s=D)
    assert not await delete_stream(patient_bus, topology.tasks.name, deadline_s=D)


async def test_eight_declare_the_same_stream_at_once(bus: Bus) -> None:
    name = f"S{uuid.uuid4().hex}"
    spec = StreamSpec(name=name, subjects=(f"{name}.>",))
    consumer = ConsumerSpec(name="c", stream=name)
    await asyncio.gather(*(declare_stream(bus, spec, deadline_s=D) for _ in range(8)))
    await asyncio.gather(*(declare_consumer(bus, consumer, deadline_s=D) for _ in range(8)))
    await delete_stream(bus, name, deadline_s=D)


async def test_compatible_changes_are_made_and_others_named(bus: Bus, stream: StreamSpec) -> None:
    await declare_stream(bus, replace(stream, max_age_s=60.0, duplicate_window_s=30.0), deadline_s=D)
    info = await api_call(bus, f"STREAM.INFO.{stream.name}", deadline_s=D)
    assert info["config"]["max_age"] == 60_000_000_000
    with pytest.raises(TopologyMismatch, match="storage") as mismatch:
        await declare_stream(bus, replace(stream, storage=Storage.MEMORY), deadline_s=D)
    assert mismatch.value.field == "storage"


async def test_consumers_are_updated_or_refused_by_field(bus: Bus, stream: StreamSpec) -> None:
    consumer = ConsumerSpec(name="c", stream=stream.name, filter_subjects=(f"{stream.name}.a",))
    await declare_consumer(bus, consumer, deadline_s=D)
    await declare_consumer(bus, replace(consumer, ack_wait_s=7.0, filter_subjects=()), deadline_s=D)
    info = await api_call(bus, f"CONSUMER.INFO.{stream.name}.c", deadline_s=D)
    assert info["config"]["ack_wait"] == 7_000_000_000
    assert "filter_subject" not in info["config"]
    with pytest.raises(TopologyMismatch, match="deliver_policy"):
        await declare_consumer(bus, replace(consumer, deliver_from=DeliverFrom.NEW), deadline_s=D)


async def test_a_repeated_id_is_stored_once_and_reported(patient_bus: Bus, stream: StreamSpec) -> None:
    first = await publish(patient_bus, f"{stream.name}.x", b"a", message_id="same")
    second = await publish(patient_bus, f"{stream.name}.x", b"a", message_id="same")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.sequence == second.sequence


async def test_publishing_where_no_stream_listens_ends_at_the_deadline(bus: Bus) -> None:
    started = time.monotonic()
    with pytest.raises(BusUnavailable, match=r"nobody\.listens"):
        await publish(bus, "nobody.listens", b"", message_id="1", deadline_s=2.0)
    assert time.monotonic() - started < 60.0


async def test_oversize_is_refused_before_it_is_sent(bus: Bus, stream: StreamSpec) -> None:
    payload = b"x" * (bus.max_payload - 10)  # fits alone, not with its headers
    with pytest.raises(PayloadTooLarge) as refused:
        await publish(bus, f"{stream.name}.x", payload, message_id="1")
    assert refused.value.limit == bus.max_payload
    assert bus.epoch == 0
    await publish(bus, f"{stream.name}.x", b"small", message_id="2")


async def test_headers_that_would_be_altered_are_refused(bus: Bus, stream: StreamSpec) -> None:
    for headers in ({"A": "x\r\ny"}, {"A": " x"}, {"A B": "x"}):
        with pytest.raises(InvalidName):
            await publish(bus, f"{stream.name}.x", b"", message_id="1", headers=headers)
    with pytest.raises(InvalidName):
        await publish(bus, f"{stream.name}.*", b"", message_id="1")


async def test_a_full_stream_says_so(bus: Bus, stream: StreamSpec) -> None:
    await declare_stream(bus, replace(stream, max_bytes=10_000), deadline_s=D)
    with pytest.raises(StreamFull):
        await fill(bus, stream, 10, size=2_000)


async def test_the_window_is_bounded_and_everything_is_acknowledged(bus: Bus, stream: StreamSpec) -> None:
    most = 0
    async with WindowedPublisher(bus, max_messages=50, max_bytes=20_000) as publisher:
        futures = []
        for number in range(500):
            futures.append(await publisher.publish(f"{stream.name}.x", b"y" * 1000, message_id=str(number)))
            assert publisher.outstanding_bytes <= 20_000
            most = max(most, publisher.outstanding_messages)
        await publisher.flush()
        assert publisher.outstanding_bytes == publisher.outstanding_messages == 0
    assert 1 < most <= 20
    assert sorted(future.result().sequence for future in futures) == list(range(1, 501))


async def test_the_window_raises_its_first_failure(bus: Bus) -> None:
    publisher = WindowedPublisher(bus, max_messages=10, max_bytes=1000, deadline_s=0.3)
    future = await publisher.publish("nobody.listens", b"", message_id="1")
    with pytest.raises(BusTimeout):
        await publisher.flush()
    with pytest.raises(BusTimeout):
        await publisher.publish("nobody.listens", b"", message_id="2")
    assert isinstance(future.exception(), BusTimeout)
    await publisher.close()


async def test_pull_is_bounded_in_bytes(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 20, size=10_000)
    await declare_consumer(bus, ConsumerSpec(name="c", stream=stream.name), deadline_s=D)
    async with await Puller.open(bus, stream=stream.name, consumer="c") as puller:
        first = await puller.fetch(batch=20, wait_s=1.0, max_bytes=35_000)
        assert len(first) == 3
        with pytest.raises(PayloadTooLarge, match="max_bytes"):
            await puller.fetch(batch=20, wait_s=1.0, max_bytes=5_000)
        rest = await pull_all(puller, 17, max_bytes=35_000)
        assert [d.sequence for d in first + rest] == list(range(1, 21))
        for delivery in first + rest:
            assert await delivery.ack_confirmed(deadline_s=D) is Settlement.CONFIRMED
        started = time.monotonic()
        assert await puller.fetch(batch=20, wait_s=0.2) == []
        assert 0.15 < time.monotonic() - started < 60.0


async def test_fetch_returns_with_the_first_message(bus: Bus, stream: StreamSpec) -> None:
    await declare_consumer(bus, ConsumerSpec(name="c", stream=stream.name), deadline_s=D)
    async with await Puller.open(bus, stream=stream.name, consumer="c") as puller:
        waiting = asyncio.create_task(puller.fetch(batch=100, wait_s=60.0))
        await publish(bus, f"{stream.name}.x", b"1", message_id="1")
        async with patiently(30.0):
            assert [d.payload for d in await waiting] == [b"1"]


async def test_headers_only_leaves_payloads_behind(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 3, size=1000)
    await declare_consumer(bus, ConsumerSpec(name="c", stream=stream.name, headers_only=True), deadline_s=D)
    async with await Puller.open(bus, stream=stream.name, consumer="c") as puller:
        deliveries = await pull_all(puller, 3)
    assert [(d.payload, d.headers["N"], d.headers["Nats-Msg-Size"]) for d in deliveries] == [
        (b"", str(n), "1000") for n in range(3)
    ]


async def test_settling(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 3)
    await declare_consumer(bus, ConsumerSpec(name="c", stream=stream.name, ack_wait_s=6.0), deadline_s=D)
    async with await Puller.open(bus, stream=stream.name, consumer="c") as puller:
        done, again, poison = await pull_all(puller, 3)
        assert await done.ack() is Settlement.SENT
        assert await done.ack() is Settlement.ALREADY_SETTLED
        assert await done.nak() is Settlement.ALREADY_SETTLED
        assert await poison.term(reason="not\r\nparsable") is Settlement.SENT
        assert await again.nak(delay_s=0.05) is Settlement.SENT
        (redelivered,) = await pull_all(puller, 1)
        assert (redelivered.sequence, redelivered.attempt) == (again.sequence, 2)
        # Not settled: it comes back after ack_wait.
        (redelivered,) = await pull_all(puller, 1)
        assert redelivered.attempt == 3
        # In progress: it does not, for as long as we say so.
        end = time.monotonic() + 8.0
        while time.monotonic() < end:
            assert await redelivered.in_progress() is Settlement.SENT
            assert await puller.fetch(batch=1, wait_s=0.2) == []
        assert await redelivered.ack_confirmed(deadline_s=D) is Settlement.CONFIRMED
        assert await redelivered.in_progress() is Settlement.ALREADY_SETTLED


async def test_pulling_from_nothing_is_an_error_within_the_wait(bus: Bus, stream: StreamSpec) -> None:
    async with await Puller.open(bus, stream=stream.name, consumer="none") as puller:
        with pytest.raises(BusUnavailable, match="none"):
            await puller.fetch(batch=1, wait_s=2.0)


async def test_direct_reads_with_gaps(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 40, size=1000)
    for gone in (4, 5, 17):
        await delete_message(bus, stream.name, gone, deadline_s=D)
    wanted = [*range(1, 10), 17, 18, 30, 30, 39, 40, 41, 99]
    result = await get_messages(bus, stream.name, wanted, deadline_s=D, parallel=3, max_bytes=6_000)
    assert result.missing == (4, 5, 17, 41, 99)
    assert set(result.messages) == set(wanted) - set(result.missing)
    assert all(m.payload == bytes([s - 1]) * 1000 for s, m in result.messages.items())
    with pytest.raises(BusNotFound) as several:
        result.complete()
    assert several.value.sequences == result.missing
    whole = await get_messages(bus, stream.name, range(20, 30), deadline_s=D)
    assert list(whole.complete()) == list(range(20, 30))


async def test_direct_reads_come_in_pieces_by_sequence(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 40, size=1000)
    await delete_message(bus, stream.name, 17, deadline_s=D)
    wanted = [40, 3, *range(10, 20), 3]
    pieces = [one async for one in get_in_pieces(bus, stream.name, wanted, deadline_s=D, piece=5, max_bytes=6_000)]
    assert [(list(piece.messages), piece.missing) for piece in pieces] == [
        ([3, 10, 11, 12, 13], ()),
        ([14, 15, 16, 18], (17,)),
        ([19, 40], ()),
    ]
    assert [m.payload[:1] for piece in pieces for m in piece.messages.values()] == [
        bytes([s - 1]) for piece in pieces for s in piece.messages
    ]


async def test_the_next_pieces_come_while_one_is_worked_on(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 30, size=1000)
    before = asyncio.all_tasks()
    pieces = get_in_pieces(bus, stream.name, range(1, 31), deadline_s=D, piece=10)
    async with contextlib.aclosing(pieces):
        assert list((await anext(pieces)).messages) == list(range(1, 11))
        reads = asyncio.all_tasks() - before
        async with asyncio.timeout(D):
            await asyncio.gather(*reads)  # without another one having been asked for
    assert asyncio.all_tasks() <= before


async def test_pieces_that_nobody_takes_leave_nothing_behind(bus: Bus, stream: StreamSpec) -> None:
    await fill(bus, stream, 30, size=1000)
    before = asyncio.all_tasks()
    pieces = get_in_pieces(bus, stream.name, range(1, 31), deadline_s=D, piece=1, parallel=1)
    async with contextlib.aclosing(pieces):
        await anext(pieces)
    assert asyncio.all_tasks() <= before
    with pytest.raises(BusTimeout):
        await anext(get_in_pieces(bus, "NOPE", range(1, 31), deadline_s=0.3, piece=10))
    assert asyncio.all_tasks() <= before


async def test_direct_read_of_a_missing_stream(bus: Bus) -> None:
    with pytest.raises(BusTimeout):
        await get_messages(bus, "NOPE", [1, 2, 7], deadline_s=0.3)
