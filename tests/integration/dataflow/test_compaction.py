"""The ledger keeps itself short in the real service: streams shrink, and nobody notices but their size."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.dataflow.books import BATCH
from tests.support.dataflow.jobs import job
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import eventually, patiently
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.records import SnapshotPart
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.trajectory import Trajectory

REPLAY = {"replay": {"ratio": 0.5, "maxUses": 3, "maxAge": 4}}


SMALL_JOURNAL = partial(Journal, compact_after_bytes=600)
"""A snapshot after every few steps, where a job takes one after thousands."""


@dataclass(frozen=True)
class Size:
    first: int
    last: int
    messages: int


async def size_of(sim: Simulation, stream: str) -> Size:
    state = (await api_call(sim.bus, f"STREAM.INFO.{stream}", deadline_s=60.0))["state"]
    return Size(first=state["first_seq"], last=state["last_seq"], messages=state["messages"])


def same(lease: BatchLease | None) -> BatchLease:
    """Without the time, which is all that may differ when it is asked for again."""
    assert lease is not None
    return msgspec.structs.replace(lease, issued_at=0.0, expires_at=1.0)


async def readable(sim: Simulation, lease: BatchLease) -> bool:
    sequences = [sample.sequence for sample in lease.samples]
    stored = (await get_messages(sim.bus, lease.stream, sequences, deadline_s=60.0)).complete()
    return all(
        decode(stored[sample.sequence].payload, Trajectory).trajectory_id == sample.trajectory_id
        for sample in lease.samples
    )


def streams_of(sim: Simulation) -> tuple[str, str]:
    return sim.topology.ledger.name, sim.topology.trajectories.name


async def beginnings(sim: Simulation) -> list[int]:
    return [(await size_of(sim, stream)).first for stream in streams_of(sim)]


async def shrink(sim: Simulation, *, since: Sequence[int] = (1, 1)) -> None:
    """Wait until the first messages of both streams are gone, of those that were there."""

    async def shrunk() -> bool:
        return all(now > then for now, then in zip(await beginnings(sim), since, strict=True))

    await eventually(shrunk, timeout_s=5.0)


@pytest.mark.slow
@pytest.mark.parametrize("data", [{}, REPLAY], ids=["fresh", "replay"])
async def test_streams_shrink_while_training_goes_on_through_restarts(
    nats_settings: NatsSettings, tmp_path: Path, data: dict[str, Any]
) -> None:
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path, make_journal=SMALL_JOURNAL, data=data) as sim, running(sim.work()):
        steps, since = 0, [1, 1]
        for attempt in range(3):
            async with sim.service():
                # Acknowledged up to a step divisible by five: one to three more are granted and not durable.
                steps = await sim.train(steps=range(steps, steps + 31), attempt=attempt, durable_every=5, seen=seen)
                await shrink(sim, since=since)
                held = {step: same(await sim.lease(step, attempt=attempt)) for step in range(steps - steps % 5, steps)}
                assert len(held) == attempt + 1
                assert all([await readable(sim, lease) for lease in held.values()])
            since = await beginnings(sim)
            async with sim.service():
                again = {step: same(await sim.lease(step, attempt=attempt)) for step in held}
                assert again == held, "a service that begins with a snapshot gives the same leases"
                assert all([await readable(sim, lease) for lease in again.values()])
        for stream in streams_of(sim):
            size = await size_of(sim, stream)
            assert size.messages < 0.4 * size.last, f"{stream} is to follow what is in flight: {size}"
    rows = [row for step in range(steps) for row in seen[step]]
    assert len(rows) == 93 * BATCH
    fresh = len(set(rows))
    assert fresh < 0.6 * len(rows) if data else fresh == len(rows), "a row comes back if it is replayed, else never"


async def test_killed_at_any_moment_a_short_ledger_forgets_nothing(nats_settings: NatsSettings, tmp_path: Path) -> None:
    chance = random.Random(3)
    seen: dict[int, set[str]] = {}

    def lifetime() -> float:
        return chance.uniform(0.05, 0.25) if chance.random() < 0.9 else 1.0

    async with (
        simulation(nats_settings, tmp_path, make_journal=SMALL_JOURNAL) as sim,
        running(sim.work(chance=chance), sim.restarting_service(lifetime)),
        patiently(60.0),
    ):
        steps = 0
        while steps < 40 or sim.incarnations <= 5:
            steps = await sim.train(steps=range(steps, steps + 20), attempt=steps, world_size=2, seen=seen)
        await shrink(sim)
    rows = [row for step in range(steps) for row in seen[step]]
    assert len(set(rows)) == len(rows) == steps * BATCH


async def test_a_snapshot_is_no_obstacle_to_another_curator(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """What one curator has learnt means nothing to the next: it begins with what happens from there on."""
    curators: list[dict[str, Any]] = [{}, {"curriculum": {}}, {"greso": {}}, {"curriculum": {}}, {}]
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path, make_journal=SMALL_JOURNAL) as sim, running(sim.work()):
        prompts = [json.dumps({"prompt": f"p{number}", "difficulty": number}) for number in range(50)]
        (tmp_path / "prompts.jsonl").write_text("\n".join(prompts))
        since = [1, 1]
        for number, curator in enumerate(curators):
            sim.job = job(sim.job.metadata.name, data={"curator": curator})
            steps = range(25 * number, 25 * number + 25)
            async with sim.service(), patiently(20.0):
                assert await sim.train(steps=steps, attempt=number, seen=seen) == steps.stop
                await shrink(sim, since=since)
            since = await beginnings(sim)


async def test_a_snapshot_that_was_cut_off_counts_for_nothing(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """The service is killed between two parts of a snapshot: the records are all there, and the next one is whole."""
    parts = 0

    class CutOff(Journal):
        async def _append(self, message: Message) -> int:
            nonlocal parts
            if isinstance(message, SnapshotPart):
                parts += 1
                if parts == 2:
                    raise ConnectionAbortedError("killed")
            return await super()._append(message)

    cut_off = partial(CutOff, compact_after_bytes=600, part_bytes=100)
    seen: dict[int, set[str]] = {}
    async with (
        simulation(nats_settings, tmp_path, make_journal=cut_off) as sim,
        running(sim.work(), sim.restarting_service(lambda: 60.0)),
    ):
        assert await sim.train(steps=range(40), seen=seen) == 40
        assert parts > 3
        assert sim.incarnations == 2
        await shrink(sim)
    rows = [row for step in range(40) for row in seen[step]]
    assert len(set(rows)) == len(rows) == 40 * BATCH
