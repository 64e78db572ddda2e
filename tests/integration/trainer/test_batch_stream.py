"""Rows from a real stream, through everything that can be in the way."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.polling import eventually, within
from tests.support.trainer.batch_server import NOT_READY, BatchServer
from tests.support.trainer.samples import trajectory
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import delete_message
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.header import MESSAGE_ID, headers
from trimtab.fabric.wire.lease import BatchLease, BatchNotReady, BatchRequest, LeaseRefused, Refusal, StepTiming
from trimtab.fabric.wire.spans import Producer, Span, model_span
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import RowLimits
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, StepRefused, Trained

FIRST = PortionId(step=0)
UNTRAINED = Trained(steps=0)


def stream_of(bus: Bus, topology: JobTopology, *, rank: int = 0, world_size: int = 1, **more: Any) -> BatchStream:
    identity = RankIdentity(job=topology.job, policy="solver", rank=rank, world_size=world_size, attempt=3)
    advantages = AdvantageRule(longest_answer=8, normalize=False)
    return BatchStream(
        bus, topology.batch_subject("solver"), identity, advantages=advantages, clock=lambda: 5.0, **more
    )


@pytest.fixture
def topology() -> JobTopology:
    return JobTopology("t", f"b{uuid.uuid4().hex[:12]}")


def never() -> bool:
    return False


async def test_rows_are_the_trajectories_with_the_advantages_of_their_group(bus: Bus, topology: JobTopology) -> None:
    batch_server = BatchServer(bus, topology, steps=2)
    async with await batch_server.open():
        stream = stream_of(bus, topology)
        timing = StepTiming(wait_seconds=1.0, step_seconds=2.0)
        batch = await stream.portion(PortionId(step=1), trained=Trained(steps=1, previous=timing), stopping=never)
        assert batch is not None
        assert batch.totals is not None
        assert (batch.step, batch.lease_id, batch.totals.samples) == (1, "solver.1.0", 2)
        assert [row.advantages.tolist() for row in batch.rows] == [[0.0] * 4 + [-0.5] * 2, [0.0] * 4 + [0.5] * 2]
        for number, row in zip((2, 3), batch.rows, strict=True):
            source = trajectory(number, job=topology.job)
            assert row.token_ids.tolist() == source.token_ids.tolist()
            assert row.mask.tolist() == [False] * 4 + [True] * 2
            np.testing.assert_array_equal(row.logprobs[4:], source.logprobs)
        (asked,) = batch_server.requests
        assert (asked.attempt, asked.previous) == (3, timing)
        assert await stream.portion(PortionId(step=2), trained=Trained(steps=2), stopping=never) is None
        await stream.acknowledge(1, lease_id="solver.1.0", weight_version=2)
        assert [(ack.step, ack.weight_version, ack.attempt) for ack in batch_server.acks] == [(1, 2, 3)]


async def test_a_rank_may_have_no_rows(bus: Bus, topology: JobTopology) -> None:
    async with await BatchServer(bus, topology, steps=1).open():
        batch = await stream_of(bus, topology, rank=2, world_size=3).portion(FIRST, trained=UNTRAINED, stopping=never)
        assert batch is not None
        assert batch.totals is not None
        assert (batch.rows, batch.totals.samples) == ((), 2)


async def test_it_asks_until_there_are_rows(bus: Bus, topology: JobTopology) -> None:
    batch_server = BatchServer(bus, topology, steps=1)
    batch_server.instead = lambda _: NOT_READY if len(batch_server.requests) < 4 else None
    async with await batch_server.open():
        assert await stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never) is not None
    assert len(batch_server.requests) == 4


@pytest.mark.parametrize("there", [True, False], ids=["batch server not ready", "no batch server"])
async def test_told_to_stop_while_it_waits_it_stops(bus: Bus, topology: JobTopology, there: bool) -> None:
    batch_server = BatchServer(bus, topology, steps=1)
    batch_server.instead = lambda _: NOT_READY
    stop = asyncio.Event()
    responder = await batch_server.open()
    if not there:
        await responder.close()
    waiting = asyncio.create_task(stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=stop.is_set))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    stop.set()
    assert await within(waiting, 5.0) is None
    await responder.close()


async def test_a_batch_server_that_comes_late_is_waited_for(bus: Bus, topology: JobTopology) -> None:
    waiting = asyncio.create_task(stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never))
    async with await BatchServer(bus, topology, steps=1).open():
        batch = await within(waiting, 20.0)
    assert batch is not None
    assert len(batch.rows) == 2


@pytest.mark.parametrize("refusal", [Refusal.SUPERSEDED, Refusal.STEP_CONSUMED, Refusal.STEP_AHEAD])
async def test_a_refusal_is_raised_with_what_would_be_granted(
    bus: Bus, topology: JobTopology, refusal: Refusal
) -> None:
    batch_server = BatchServer(bus, topology, steps=1)
    batch_server.instead = lambda _: LeaseRefused(refusal=refusal, message="no", next_step=7)
    async with await batch_server.open():
        with pytest.raises(StepRefused) as caught:
            await stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never)
    assert (caught.value.refusal, caught.value.next_step) == (refusal, 7)


async def test_rows_come_in_the_order_of_the_lease(bus: Bus, topology: JobTopology) -> None:
    batch_server = BatchServer(bus, topology, steps=2)

    def reversed_lease(request: BatchRequest) -> BatchLease:
        lease = batch_server.lease(request)
        assert isinstance(lease, BatchLease)
        return msgspec.structs.replace(lease, samples=lease.samples[::-1])

    batch_server.instead = reversed_lease
    async with await batch_server.open():
        portion = await stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never)
    assert portion is not None
    assert [row.key for row in portion.rows] == [2, 1]


async def test_a_row_that_is_not_the_one_that_was_leased_is_not_trained_on(bus: Bus, topology: JobTopology) -> None:
    batch_server = BatchServer(bus, topology, steps=2)

    def swapped(request: BatchRequest) -> BatchLease:
        lease = batch_server.lease(request)
        assert isinstance(lease, BatchLease)
        first, second = lease.samples
        wrong = msgspec.structs.replace(first, sequence=second.sequence)
        return msgspec.structs.replace(lease, samples=(wrong, second))

    batch_server.instead = swapped
    async with await batch_server.open():
        portion = await stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never)
    assert portion is not None
    assert [row.trained_tokens for row in portion.rows] == [0, 2]


HOSTILE: dict[str, bytes | Trajectory] = {
    "no frame": b"not a trajectory",
    "nothing": b"",
    "another kind": encode(BatchNotReady(policy="solver", step=0, reason="no", retry_after=0.1)),
    "another id": msgspec.structs.replace(trajectory(0, job="j"), trajectory_id="t9"),
    "no such token": msgspec.structs.replace(
        trajectory(0, job="j"), token_ids=np.array([1, 2, 3, 4, 5, 2**31 - 1], dtype=np.int32)
    ),
    "more tokens than its header says": msgspec.structs.replace(
        trajectory(0, job="j"),
        token_ids=np.zeros(5000, dtype=np.int32),
        spans=(Span(4998, Producer.PROMPT), model_span(2, version=0)),
    ),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
async def test_what_a_rollout_pod_puts_below_a_good_header_stops_no_trainer(
    bus: Bus, topology: JobTopology, payload: bytes | Trajectory
) -> None:
    """The dataflow sees headers alone, so it grants the row, and grants it again to every attempt."""
    genuine = trajectory(0, job=topology.job)
    batch_server = BatchServer(bus, topology, steps=2)
    aside: list[None] = []
    async with await batch_server.open():
        hostile = await publish(
            bus,
            topology.trajectory_subject("solver"),
            payload if isinstance(payload, bytes) else encode(payload),
            message_id="hostile",
            headers={**headers(genuine), MESSAGE_ID: "hostile"},
        )
        batch_server.sequences[0] = hostile.sequence
        limits = RowLimits(vocabulary=16, longest=64)
        stream = stream_of(bus, topology, limits=limits, on_set_aside=lambda: aside.append(None))
        portion = await stream.portion(FIRST, trained=UNTRAINED, stopping=never)
    assert portion is not None
    assert [(row.key, row.trained_tokens) for row in portion.rows] == [
        (hostile.sequence, 0),
        (batch_server.sequences[1], 2),
    ]
    assert len(aside) == 1


async def test_rows_that_are_gone_are_a_typed_error_and_no_endless_wait(bus: Bus, topology: JobTopology) -> None:
    async with await BatchServer(bus, topology, steps=1).open():
        await delete_message(bus, topology.trajectories.name, 2, deadline_s=60.0)
        with pytest.raises(BusNotFound) as caught:
            await stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never)
    assert caught.value.sequences == (2,)


async def test_a_broker_that_restarts_delays_it_only(own_nats: EmbeddedNats, topology: JobTopology) -> None:
    settings = own_nats.settings
    async with (
        await Bus.connect(settings, name="batch_server") as server_bus,
        await Bus.connect(settings, name="rank") as bus,
        await BatchServer(server_bus, topology, steps=1).open(),
    ):
        own_nats.kill()
        waiting = asyncio.create_task(stream_of(bus, topology).portion(FIRST, trained=UNTRAINED, stopping=never))
        await eventually(lambda: bus.state != "connected", timeout_s=10.0)
        own_nats.start()
        batch = await within(waiting, 40.0)
        assert batch is not None
        assert len(batch.rows) == 2
