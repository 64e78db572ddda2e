"""Workers of a pool take turns at swapping, through a real bucket; and no outage keeps one from it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.polling import eventually, patiently, within
from tests.support.rollout.job import Job
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.rollout.refresh.turns import PoolCensus, SwapTurns, TurnTimings

Turns = Callable[[str], SwapTurns]
PATIENT = TurnTimings(patience_s=600.0, deadline_s=60.0)
"""A worker that is not answered for two seconds swaps without a turn, which is not what most tests are about."""


async def register(job: Job, *names: str, state: State = State.READY, pool: str = "p") -> None:
    members = KeyValue(job.bus, job.topology.members)
    for name in names:
        beat = MemberHeartbeat(
            member_id=name, job=job.topology.job, role=Role.ROLLOUT, pool=pool, state=state, started_at=1.0, sent_at=1.0
        )
        await members.put(name, encode(beat))


def turns_of(
    slots: KeyValue, members: KeyValue, name: str, *, timings: TurnTimings = PATIENT, census_good_for_s: float = 5.0
) -> SwapTurns:
    return SwapTurns(
        slots,
        PoolCensus(
            members, pool="p", clock=time.monotonic, good_for_s=census_good_for_s, deadline_s=timings.deadline_s
        ),
        pool="p",
        policy="solver",
        member=name,
        clock=time.monotonic,
        waits=FullJitter(0.01, 0.05),
        timings=timings,
    )


@pytest.fixture
def turns(job: Job) -> Turns:
    return lambda name: turns_of(KeyValue(job.bus, job.topology.swaps), KeyValue(job.bus, job.topology.members), name)


@pytest.mark.parametrize(("workers", "at_once"), [(2, 1), (4, 1), (9, 2)])
async def test_at_most_a_quarter_swaps_at_a_time_and_everybody_gets_a_turn(
    job: Job, turns: Turns, workers: int, at_once: int
) -> None:
    names = [f"w{number}" for number in range(workers)]
    await register(job, *names)
    await register(job, "starting", state=State.STARTING)
    await register(job, "leaving", state=State.DRAINING)
    await register(job, *(f"x{number}" for number in range(20)), pool="another")
    swapping = 0
    most = 0
    served = []

    async def swap(name: str) -> None:
        nonlocal swapping, most
        async with turns(name).turn():
            swapping += 1
            most = max(most, swapping)
            for _ in range(20):
                await asyncio.sleep(0.002)
            swapping -= 1
            served.append(name)

    async with patiently(25.0):
        await asyncio.gather(*map(swap, names))
    assert sorted(served) == sorted(names)
    assert most == at_once


async def test_a_worker_alone_needs_no_turn(job: Job, turns: Turns) -> None:
    await register(job, "w0")
    async with turns("w0").turn():
        with pytest.raises(BusNotFound):
            await KeyValue(job.bus, job.topology.swaps).get(JobTopology.swap_slot_key("p", "solver", slot=0))


@pytest.mark.slow
async def test_a_holder_that_dies_frees_its_slot_and_one_that_lives_keeps_it(bus: Bus, job: Job) -> None:
    await register(job, "w0", "w1", "w2")
    spec = replace(job.topology.swaps, name=f"swaps-{uuid.uuid4().hex[:8]}", ttl_s=6.0)
    slots = await KeyValue.declare(bus, spec, deadline_s=60.0)
    members = KeyValue(bus, job.topology.members)
    key = JobTopology.swap_slot_key("p", "solver", slot=0)
    await slots.create(key, b"w0")  # and that was the last of w0
    async with patiently(20.0), turns_of(slots, members, "w1").turn():
        held = await slots.get(key)
        assert held.value == b"w1"

        async def renewed_past_its_time() -> bool:
            return (await slots.get(key)).revision >= held.revision + 4

        waiting = asyncio.create_task(_pass(turns_of(slots, members, "w2")))
        await eventually(renewed_past_its_time, timeout_s=15.0)
        assert not waiting.done()
    await within(waiting, 15.0)


async def _pass(turns: SwapTurns) -> None:
    async with turns.turn():
        pass


async def test_waiting_has_an_end(job: Job, turns: Turns) -> None:
    await register(job, "w0", "w1")
    slots, members = KeyValue(job.bus, job.topology.swaps), KeyValue(job.bus, job.topology.members)
    impatient = turns_of(slots, members, "w1", timings=replace(PATIENT, patience_s=0.3))
    async with turns("w0").turn(), patiently(15.0), impatient.turn():
        pass


async def test_without_a_bus_a_worker_swaps_all_the_same(own_nats: EmbeddedNats) -> None:
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        job = await Job.open(bus)
        await register(job, "w0", "w1", "w2", "w3")
        turns = turns_of(
            KeyValue(bus, job.topology.swaps),
            KeyValue(bus, job.topology.members),
            "w0",
            timings=replace(PATIENT, deadline_s=0.2),
            census_good_for_s=0.0,
        )
        async with turns.turn():  # with the bus, so that the pool is known to have others
            own_nats.kill()
        async with patiently(15.0), turns.turn():
            pass
        await asyncio.to_thread(own_nats.start)
        await eventually(lambda: bus.state == "connected", timeout_s=20.0)
