"""Columns on a real NATS: stage workers are asked, what they compute reaches the rank that trains the row, and nothing
of it is lost or mixed up when a dataflow dies in between.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.dataflow.books import BATCH, GROUP, STALENESS
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.stage_worker import Faults, StageWorker, gives_up, keeps, numbers, reward, serve_stages
from tests.support.dataflow.stages import stage
from tests.support.polling import eventually, patiently
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.journal import Journal
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.lease import BatchLease
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained

REFERENCE = stage("reference")
GRADE = stage("grade", "Reward", needs=["reference"])
SIFT = stage("sift", "Filter", needs=["grade"])
VALUES = stage("values", "Custom", needs=["sift"])
GRAPH = (REFERENCE, GRADE, SIFT, VALUES)
UNRELIABLE = Faults(dies_before=10, dies_after=10, repeats=15, lies=10, fails_groups=True)


def rank(sim: Simulation) -> BatchStream:
    identity = RankIdentity(job=sim.job.metadata.name, policy="solver", rank=0, world_size=1, attempt=0)
    return BatchStream(
        sim.bus,
        sim.topology.batch_subject("solver"),
        identity,
        advantages=AdvantageRule(longest_answer=8, normalize=False),
        clock=lambda: 1.0,
        on_set_aside=lambda: pytest.fail("a row was set aside"),
    )


async def rows_of(sim: Simulation, stream: BatchStream, step: int) -> list[Row]:
    """Of a whole step, whatever portions it comes in."""
    rows: list[Row] = []
    chunk = 0
    while True:
        portion = await stream.portion(
            PortionId(step=step, chunk=chunk), trained=Trained(steps=step), stopping=lambda: False
        )
        assert portion is not None
        rows += portion.rows
        chunk += 1
        if portion.totals is not None:
            sim.versions["solver"] = step + 1
            return rows


def check(row: Row, *stages: str) -> None:
    """The row has the numbers that were computed of it, where it is trained."""
    assert set(row.columns) == set(stages)
    for name in stages:
        expected = numbers(name, f"{row.episode.group}.{row.episode.index}", int(row.mask.sum()))
        np.testing.assert_array_equal(row.columns[name][row.mask], expected)
        assert not row.columns[name][~row.mask].any()


async def audited(sim: Simulation) -> AuditReport:
    report = await audit(sim.bus, sim.topology, data=sim.job.spec.data, stages=sim.stages)
    assert report.violations == []
    return report


async def test_a_rank_trains_rows_with_what_stages_computed_of_them(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path, stages=GRAPH) as sim, sim.service():
        workers = serve_stages(sim.bus, sim.topology, GRAPH, chance=random.Random(1))
        async with running(sim.work(), workers):
            stream = rank(sim)
            for step in range(6):
                rows = await rows_of(sim, stream, step)
                assert len({row.episode.group for row in rows}) == BATCH // GROUP
                for row in rows:
                    check(row, "reference", "values")
                    assert keeps("sift", f"{row.episode.group}.{row.episode.index}")
        report = await audited(sim)
        assert report.steps == {"solver": 6}
        assert report.columns_beside == 0
        exposed = sim.metrics.exposition("")[0].decode()
        assert 'trimtab_stage_columns_total{outcome="refused",stage="grade"} 0.0' in exposed
        assert 'trimtab_stage_columns_total{outcome="taken",stage="values"} 0.0' not in exposed


async def test_rewards_of_a_stage_take_the_place_of_the_workflows(nats_settings: NatsSettings, tmp_path: Path) -> None:
    stages = (stage("grade", "Reward"),)
    async with simulation(nats_settings, tmp_path, stages=stages) as sim, sim.service():
        workers = serve_stages(sim.bus, sim.topology, stages, chance=random.Random(1))
        async with running(sim.work(), workers):
            lease = await sim.lease(0)
    assert isinstance(lease, BatchLease)
    assert lease.samples
    for sample in lease.samples:
        assert sample.reward == reward("grade", sample.trajectory_id)
        assert lease.groups[sample.group].episodes[sample.episode].reward == sample.reward
    assert not any(group.columns for group in lease.groups), "ranks need not read what the lease says"


async def test_without_stage_workers_nothing_is_granted_and_no_more_is_sampled(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path, stages=(REFERENCE,)) as sim:
        await declare_job(sim.bus, sim.topology, deadline_s=60.0)
        async with sim.service(), running(sim.work()):

            async def all_asked() -> bool:
                return (await waiting(sim)) == (STALENESS + 1) * BATCH // GROUP

            await eventually(all_asked, timeout_s=30.0)
            assert not isinstance(await sim.ask(0, wait_s=0.2), BatchLease)
        report = await audited(sim)
        assert (report.staged, report.columns, report.waiting) == (await waiting(sim), 0, {"solver": 0})
        async with sim.service(), running(serve_stages(sim.bus, sim.topology, sim.stages, chance=random.Random(1))):
            check((await rows_of(sim, rank(sim), 0))[0], "reference")


async def waiting(sim: Simulation) -> int:
    """On the work queue of stages."""
    state = (await api_call(sim.bus, f"STREAM.INFO.{sim.topology.stage_tasks.name}", deadline_s=60.0))["state"]
    return int(state["messages"])


@pytest.mark.slow
async def test_nothing_is_mixed_up_while_the_dataflow_and_stage_workers_die(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    chance = random.Random(7)
    small = partial(Journal, compact_after_bytes=600)
    async with simulation(nats_settings, tmp_path, stages=GRAPH, make_journal=small) as sim:
        workers = serve_stages(sim.bus, sim.topology, GRAPH, chance=chance, faults=UNRELIABLE)
        killing = sim.restarting_service(lambda: chance.uniform(0.4, 1.2))
        async with running(sim.work(chance=chance), workers, killing), patiently(60.0):
            stream = rank(sim)
            step = -1
            while sim.incarnations < 5 or step < 4:
                step += 1
                for row in await rows_of(sim, stream, step):
                    check(row, "reference", "values")
                    assert not any(gives_up(one.name, row.episode.group) for one in GRAPH)
                if step % 2 == 1:
                    await sim.acknowledge(step)


async def test_columns_that_nobody_will_ask_for_again_are_let_go(nats_settings: NatsSettings, tmp_path: Path) -> None:
    small = partial(Journal, compact_after_bytes=600)
    async with simulation(nats_settings, tmp_path, stages=(REFERENCE,), make_journal=small) as sim:

        async def are_gone() -> bool:
            state = (await api_call(sim.bus, f"STREAM.INFO.{sim.topology.columns.name}", deadline_s=60.0))["state"]
            return int(state["first_seq"]) > 4 * BATCH // GROUP

        async with running(sim.work(), serve_stages(sim.bus, sim.topology, sim.stages, chance=random.Random(1))):
            async with sim.service(), patiently(60.0):
                for step in itertools.count():
                    await rows_of(sim, rank(sim), step)
                    await sim.acknowledge(step)
                    if await are_gone():
                        break
            # Another process has what is left.
            async with sim.service():
                for row in await rows_of(sim, rank(sim), step + 1):
                    check(row, "reference")


async def test_what_a_hostile_pod_stores_is_passed_over_and_counted(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path, stages=(REFERENCE,)) as sim, sim.service():
        subject = sim.topology.column_subject("reference")
        lies = Faults(lies=50)
        async with running(
            sim.work(), serve_stages(sim.bus, sim.topology, sim.stages, chance=random.Random(1), faults=lies)
        ):
            for step in range(3):
                for row in await rows_of(sim, rank(sim), step):
                    check(row, "reference")
                if step == 0:
                    await publish(sim.bus, subject, b"no frame", message_id="nonsense", deadline_s=60.0)
        exposed = sim.metrics.exposition("")[0].decode()
        assert 'trimtab_set_aside_records_total{stream="columns"} 1.0' in exposed
        assert 'trimtab_stage_columns_total{outcome="refused",stage="reference"} 0.0' not in exposed


async def test_a_stage_worker_on_a_connection_of_its_own_may_go_and_come_back(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path, stages=(REFERENCE,)) as sim, sim.service(), running(sim.work()):
        for step in range(2):
            async with await Bus.connect(nats_settings, name=f"stage-{step}") as bus:
                worker = StageWorker(bus, sim.topology, REFERENCE, chance=random.Random(step))
                async with running(worker.run()):
                    check((await rows_of(sim, rank(sim), step))[0], "reference")
        streams = await read_streams(sim.bus, sim.topology)
        assert streams.columns
