"""A ledger that has lost its end, and a trainer that has lost its newest checkpoint: the job goes on, with no sample in
the weights twice, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.dataflow.books import BATCH
from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import Simulation, pointer, running, simulation
from tests.support.polling import eventually, patiently
from tests.support.sizes import Sizes
from trimtab.dataflow.audit.report import audit
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger import snapshot
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew
from trimtab.dataflow.ledger.snapshot import UnknownLedgerFormat
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.errors import BusError, BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import delete_message
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease, LeaseRefused, Refusal
from trimtab.fabric.wire.member import ANCHORED_ANEW, GIVEN_UP_GROUPS, MemberHeartbeat

SMALL_JOURNAL = partial(Journal, compact_after_bytes=600)


async def cut(sim: Simulation, count: int, *, of: str | None = None) -> int:
    """Delete the newest messages of the ledger or another stream, as many as that or all but the first, by which an
    auditor sees that nothing was trimmed."""
    stream = of or sim.topology.ledger.name
    state = (await api_call(sim.bus, f"STREAM.INFO.{stream}", deadline_s=60.0))["state"]
    deleted = 0
    for sequence in range(state["last_seq"], state["first_seq"], -1):
        if deleted == count:
            break
        try:
            await delete_message(sim.bus, stream, sequence, deadline_s=60.0)
            deleted += 1
        except BusNotFound:
            continue
    return deleted


async def anchors(sim: Simulation) -> list[LedgerAnchoredAnew]:
    records = (await read_streams(sim.bus, sim.topology)).records
    return [record for record in records if isinstance(record, LedgerAnchoredAnew)]


async def test_a_ledger_that_lost_its_end_goes_on_where_the_trainer_proves_that_it_is(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        async with sim.service():
            await trainer.train(6)
        assert await cut(sim, 1000) > 0
        async with sim.service():
            answer = await sim.ask(6, attempt=1)
            assert isinstance(answer, LeaseRefused)
            assert answer.refusal is Refusal.STEP_AHEAD
            job = f"default/{sim.job.metadata.name}"
            for forged in (pointer(job, 6, signer=Signer.generate()), pointer(job, 7), pointer("default/other", 6)):
                refused = await sim.prove(6, sealed=forged, attempt=1)
                assert isinstance(refused, LeaseRefused)
                assert refused.refusal is Refusal.UNPROVEN
            assert await anchors(sim) == []
            async with patiently(60.0):
                await trainer.restart()
                await trainer.train(4)
        trainer.check()
        (record,) = await anchors(sim)
        assert (record.step, record.was_at, record.is_forward) == (6, 0, True)
        # A process that comes later knows it too, and tells it in its heartbeat.
        async with sim.service():
            assert isinstance(await sim.ask(10, attempt=9, wait_s=5.0), BatchLease)
            members = KeyValue(sim.bus, sim.topology.members)

            async def told() -> dict[str, int]:
                return dict(decode((await members.get("dataflow-0")).value, MemberHeartbeat).failures)

            async def says() -> bool:
                return await told() == {ANCHORED_ANEW: 1, GIVEN_UP_GROUPS: record.given_up}

            await eventually(says, timeout_s=30.0)
        report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
        assert report.violations == []


async def test_a_trainer_that_lost_its_newest_checkpoint_goes_on_from_the_one_before(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()), sim.service():
        trainer = LineageTrainer(sim)
        await trainer.train(6)
        durable = set().union(*trainer.weights)
        trainer.lose_newest_checkpoint()
        async with patiently(60.0):
            await trainer.restart()
            assert len(trainer.weights) == 4
            await trainer.train(4)
        trainer.check()
        (record,) = await anchors(sim)
        assert (record.step, record.was_at, record.is_forward) == (4, 6, False)
        # What was trained in the steps that are lost is not trained again either.
        assert not durable & set().union(*trainer.weights[4:])
        report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
        assert report.violations == []
        assert report.steps == {"solver": 8}


@pytest.mark.parametrize("journal", [pytest.param(Journal, id="records"), pytest.param(SMALL_JOURNAL, id="snapshots")])
@pytest.mark.parametrize("rows", [1, 15, 1000])
async def test_rows_that_are_gone_are_given_up_and_the_job_goes_on(
    nats_settings: NatsSettings, tmp_path: Path, journal: type[Journal], rows: int
) -> None:
    """The ledger has its end: it speaks of rows that were acknowledged, and that a loss of power took."""
    async with simulation(nats_settings, tmp_path, make_journal=journal) as sim:
        trainer, stop = LineageTrainer(sim), asyncio.Event()
        async with running(sim.work(stop=stop)) as (worker,), sim.service():
            await trainer.train(6)
            stop.set()
            await asyncio.wait_for(worker, 60.0)
        assert await cut(sim, rows, of=sim.topology.trajectories.name) > 0
        async with running(sim.work()), sim.service(), patiently(60.0):
            await trainer.restart()
            await trainer.train(4)
        trainer.check()
        # A second process finds nothing more to give up.
        async with running(sim.work()), sim.service(), patiently(60.0):
            await trainer.train(2)
        trainer.check()
        if journal is Journal:
            assert len([record for record in await anchors(sim) if record.lost_rows]) == 1
            report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
            assert report.violations == []


@pytest.mark.parametrize("journal", [pytest.param(Journal, id="records"), pytest.param(SMALL_JOURNAL, id="snapshots")])
async def test_ends_are_lost_at_random_moments(
    nats_settings: NatsSettings, tmp_path: Path, sizes: Sizes, journal: type[Journal]
) -> None:
    """Of the ledger, however much of it; sometimes the trainer dies as well, or has lost its newest checkpoint."""
    chance = random.Random(7)
    async with simulation(nats_settings, tmp_path, prompts=500, make_journal=journal) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        for turn in range(sizes.lost_tails):
            async with sim.service():
                if turn and chance.random() < 0.6:
                    await trainer.restart()
                async with patiently(60.0):
                    await trainer.train(chance.randrange(1, 6))
            trainer.check()
            if len(trainer.checkpoints) > 1 and chance.random() < 0.2:
                trainer.lose_newest_checkpoint()
                async with sim.service():
                    await trainer.restart()
                continue
            await cut(sim, chance.choice([1, 2, 5, 20, 1000]))
        async with sim.service(), patiently(60.0):
            await trainer.train(3)
        trainer.check()
        assert trainer.anchored > 0
        if journal is Journal:
            report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
            assert report.violations == []
            assert report.trained["solver"] >= len(trainer.weights[-3:]) * BATCH


async def test_a_store_that_was_put_back_to_an_earlier_moment(tmp_path: Path) -> None:
    """What a power loss leaves of a server: all streams as they were some seconds ago, the queue and the rows with
    the ledger."""
    store, earlier = tmp_path / "nats", tmp_path / "earlier"
    with EmbeddedNats(store) as server:
        async with simulation(server.settings, tmp_path) as sim:
            trainer = LineageTrainer(sim)
            async with running(sim.work()), sim.service():
                await trainer.train(3)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(shutil.copytree, store, earlier)
            await asyncio.to_thread(server.start)
            async with running(sim.work()), sim.service(), patiently(60.0):
                await trainer.train(5)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(shutil.rmtree, store)
            await asyncio.to_thread(shutil.copytree, earlier, store)
            await asyncio.to_thread(server.start)
            async with running(sim.work()), sim.service(), patiently(60.0):
                await trainer.restart()
                await trainer.train(5)
            trainer.check()
            assert trainer.anchored == 1
            report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
            assert report.violations == []


async def _works_on(sim: Simulation) -> None:
    """A worker that is started again when its server was away for too long."""
    while True:
        with contextlib.suppress(BusError):
            await sim.work()


async def test_a_service_that_lives_on_when_its_server_lost_power_recovers(tmp_path: Path) -> None:
    store, earlier = tmp_path / "nats", tmp_path / "earlier"
    with EmbeddedNats(store) as server:
        async with simulation(server.settings, tmp_path) as sim:
            trainer = LineageTrainer(sim)
            async with running(_works_on(sim)), running(sim.restarting_service(lambda: 1000.0)), patiently(120.0):
                await trainer.train(3)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(shutil.copytree, store, earlier)
                await asyncio.to_thread(server.start)
                await trainer.train(5)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(shutil.rmtree, store)
                await asyncio.to_thread(shutil.copytree, earlier, store)
                await asyncio.to_thread(server.start)
                await trainer.restart()
                await trainer.train(5)
            trainer.check()
            assert sim.incarnations > 1
            report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
            assert report.violations == []


async def test_a_ledger_of_another_format_is_refused_by_its_number_and_stays_as_it_is(
    nats_settings: NatsSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataflow that is rolled back too far harms nothing: the version that has written the ledger goes on."""

    class FromTheFuture(Journal):
        format = 9

    async with simulation(nats_settings, tmp_path, make_journal=FromTheFuture) as sim, running(sim.work()):
        trainer = LineageTrainer(sim)
        async with sim.service():
            await trainer.train(3)
        sim.make_journal = Journal
        written = await last_record(sim)
        for _ in range(2):
            async with sim.service() as service:
                with pytest.raises(UnknownLedgerFormat, match=r"format 9, and this version of Trimtab reads 1 and 2"):
                    await asyncio.wait_for(service, 60.0)
        assert await last_record(sim) == written
        sim.make_journal = FromTheFuture
        monkeypatch.setattr(snapshot, "READ_FORMATS", (2, 9))
        async with sim.service():
            await trainer.restart()
            await trainer.train(3)
        trainer.check()


async def last_record(sim: Simulation) -> int:
    """Its number."""
    state = (await api_call(sim.bus, f"STREAM.INFO.{sim.topology.ledger.name}", deadline_s=60.0))["state"]
    return int(state["last_seq"])
