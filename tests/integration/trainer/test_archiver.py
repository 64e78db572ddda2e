"""Rows that were trained on, archived in a real store: once each, for so many steps, and never at training's cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.polling import eventually, within
from tests.support.trainer.batch_server import BatchServer
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.sample_archive import ARCHIVE, ArchivedRow, parse_key, read_part
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.archiver import MAX_WAITING_BYTES, ArchiveMetrics, SampleArchiver
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained

STEPS = 6


def archiver(store: ObjectStore, *, keep_steps: int = 100, waiting: int = MAX_WAITING_BYTES) -> SampleArchiver:
    return SampleArchiver(
        store, ArchiveMetrics(Metrics()), policy="solver", rank=0, keep_steps=keep_steps, max_waiting_bytes=waiting,
        backoff=FullJitter(base_s=0.05, cap_s=0.2),
    )  # fmt: skip


@asynccontextmanager
async def training(bus: Bus, topology: JobTopology, archive: SampleArchiver) -> AsyncIterator[BatchStream]:
    """A rank that archives, with steps to be had."""
    server = BatchServer(bus, topology, steps=STEPS)
    async with await server.open():
        stream = BatchStream(
            bus,
            topology.batch_subject("solver"),
            RankIdentity(job=topology.job, policy="solver", rank=0, world_size=1, attempt=0),
            advantages=AdvantageRule(longest_answer=8, normalize=False),
            clock=lambda: 5.0,
            on_rows=archive.note,
        )
        running = asyncio.create_task(archive.run())
        try:
            yield stream
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def train(stream: BatchStream, *steps: int) -> None:
    for step in steps:
        taking = stream.portion(PortionId(step=step), trained=Trained(steps=step), stopping=lambda: False)
        assert await within(asyncio.ensure_future(taking), 60.0) is not None


async def archived(store: ObjectStore) -> dict[int, list[ArchivedRow]]:
    found: dict[int, list[ArchivedRow]] = {}
    async for info in store.scan(ARCHIVE, deadline_s=60.0):
        place = parse_key(info.key)
        assert place is not None
        body = (await store.get(info.key, max_bytes=1 << 20, deadline_s=60.0)).body
        found.setdefault(place.step, []).extend(read_part(body))
    return found


async def test_every_row_is_there_once_also_when_it_is_fetched_again(
    bus: Bus, topology: JobTopology, store: ObjectStore
) -> None:
    archive = archiver(store)
    async with training(bus, topology, archive) as stream:
        await train(stream, 0, 0, 1, 2, 2)
        await archive.drain(deadline_s=60.0)
    found = await archived(store)
    assert sorted(found) == [0, 1, 2]
    rows = [row for step in sorted(found) for row in found[step]]
    assert [row.row.group_index for row in rows] == [0, 1] * 3
    assert len({row.row.trajectory_id for row in rows}) == 6
    assert archive.lost_steps == 0


async def test_so_many_steps_are_kept(bus: Bus, topology: JobTopology, store: ObjectStore) -> None:
    async with training(bus, topology, first := archiver(store)) as stream:
        await train(stream, *range(4))
        await first.drain(deadline_s=60.0)
    async with training(bus, topology, resumed := archiver(store, keep_steps=2)) as stream:
        await train(stream, 4)
        await resumed.drain(deadline_s=60.0)
    assert sorted(await archived(store)) == [3, 4]


async def test_a_store_that_is_away_costs_steps_of_the_archive_and_no_training(
    bus: Bus, topology: JobTopology, own_seaweed: EmbeddedSeaweed
) -> None:
    async with ObjectStore(own_seaweed.settings) as store:
        archive = archiver(store, waiting=1)
        async with training(bus, topology, archive) as stream:
            await train(stream, 0)
            await archive.drain(deadline_s=60.0)
            own_seaweed.kill()
            await train(stream, 1, 2, 3)
            await eventually(lambda: archive.lost_steps == 2, timeout_s=60.0)
            own_seaweed.start()
            await archive.drain(deadline_s=120.0)
            await train(stream, 4)
            await archive.drain(deadline_s=60.0)
        assert sorted(await archived(store)) == [0, 1, 4]
        assert archive.lost_steps == 2
