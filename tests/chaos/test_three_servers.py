"""Three nats-servers keep a job's streams while it trains. The leader is killed every ten seconds, one server loses all
that it has stored, one is cut off: nothing is lost, nothing trained twice, and training stands still for half a minute
at most.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.steady_rank import SteadyRank
from tests.support.fabric.nats_cluster import NatsCluster, nats_cluster
from tests.support.fabric.parted_nats import parted_cluster
from tests.support.polling import eventually
from trimtab.dataflow.audit.report import judged
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.journal import Journal
from trimtab.fabric.bus.connection import Bus

pytestmark = pytest.mark.slow

_GAP_S = 30.0
_KILLING_S = 300.0
_KILL_EVERY_S = 10.0
_STEP_S = 0.1
_NEVER = 1 << 40
"""The ledger keeps every record, for the audit."""


@dataclass(frozen=True)
class Training:
    """A job on a cluster that trains."""

    cluster: NatsCluster
    sim: Simulation
    rank: SteadyRank

    async def goes_on(self, *, steps: int = 10) -> None:
        before = self.rank.steps
        await eventually(lambda: self.rank.steps >= before + steps, timeout_s=_GAP_S)

    async def leader(self, stream: str) -> str:
        found: list[str] = []

        async def known() -> bool:
            leader = await self.cluster.leader_of(self.sim.bus, stream)
            found[:] = [] if leader is None else [leader]
            return bool(found)

        await eventually(known, timeout_s=30.0)
        return found[0]

    async def serves(self, worker: str, *, after: int) -> bool:
        """Whether a row of this worker is stored that came after a sequence."""
        streams = await read_streams(self.sim.bus, self.sim.topology)
        return any(one.worker == worker for one in streams.headers[after:])

    async def all_have_everything(self) -> bool:
        """Whether each server answers and has caught up with the leaders."""
        for spec in self.sim.topology.streams:
            info = await self.cluster.replicas_of(self.sim.bus, spec.name)
            if info is None or any(one.get("offline") or not one.get("current") for one in info):
                return False
        return all(server.answers() for server in self.cluster.servers.values())


@asynccontextmanager
async def training(cluster: NatsCluster, folder: Path) -> AsyncIterator[Training]:
    """The dataflow is started again when it ends, as its pod would be."""
    folder.mkdir()
    journal = partial(Journal, compact_after_bytes=_NEVER)
    async with simulation(cluster.settings, folder, replicas=3, make_journal=journal, maxSteps=1_000_000) as sim:
        rank = SteadyRank(sim, step_s=_STEP_S)
        async with running(sim.restarting_service(lambda: math.inf), sim.work(), rank.train()):
            made = Training(cluster, sim, rank)
            await made.goes_on()
            yield made


async def check(made: Training, *, since: float, capsys: pytest.CaptureFixture[str], what: str) -> None:
    sim, rank = made.sim, made.rank
    gap_s, steps, stored = rank.longest_gap_s(since=since), rank.steps, dict(sim.stored)
    async with await Bus.connect(sim.settings, name="auditor") as bus:
        streams = await read_streams(bus, sim.topology)
    report = judged(streams, data=sim.job.spec.data)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{what}: {steps} steps, a gap of {gap_s:.1f} s, {sim.incarnations} lives of the dataflow,"
            f" {len(stored)} rows\n"
        )
    assert report.violations == []
    assert report.steps["solver"] >= steps - 1
    there = dict(enumerate((f"{one.group_id}.{one.group_index}" for one in streams.headers), start=1))
    lost = [row for row, sequence in stored.items() if there.get(sequence) != row]
    assert lost == [], "rows that were acknowledged are gone"
    of_steps = [row for step in range(steps) for row in rank.rows[step]]
    assert len(of_steps) == len(set(of_steps)), "a row was in two steps"
    assert gap_s <= _GAP_S


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with nats_cluster(tmp_path / "nats") as cluster:
        yield cluster


async def test_training_goes_on_while_the_leader_is_killed_every_ten_seconds(
    cluster: NatsCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with training(cluster, tmp_path / "job") as made:
        began, killed = time.monotonic(), 0
        streams = itertools.cycle([made.sim.topology.ledger.name, made.sim.topology.trajectories.name])
        while time.monotonic() < began + _KILLING_S:
            # A majority must be there: the one killed last has to be back.
            await eventually(lambda: all(one.answers() for one in cluster.servers.values()), timeout_s=30.0)
            cluster.servers[await made.leader(next(streams))].kill()
            killed += 1
            await asyncio.sleep(max(0.0, began + killed * _KILL_EVERY_S - time.monotonic()))
        await made.goes_on()
        await check(made, since=began, capsys=capsys, what=f"{killed} leaders killed")
    assert killed >= 0.8 * _KILLING_S / _KILL_EVERY_S


async def test_a_server_that_has_lost_its_store_gets_it_back_from_the_others(
    cluster: NatsCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with training(cluster, tmp_path / "job") as made:
        began = time.monotonic()
        lost = cluster.servers[await made.leader(made.sim.topology.ledger.name)]
        lost.kill()
        await asyncio.to_thread(lost.stop)
        shutil.rmtree(lost.data_folder / "jetstream")
        await made.goes_on()
        await asyncio.to_thread(lost.start)
        await eventually(made.all_have_everything, timeout_s=60.0)
        await made.goes_on()
        # What it has now is as good as what it had: another goes, and it is one of two.
        other = cluster.servers[await made.leader(made.sim.topology.trajectories.name)]
        if other is lost:
            other = next(one for one in cluster.servers.values() if one is not lost)
        other.kill()
        await asyncio.to_thread(other.stop)
        await made.goes_on(steps=50)
        await check(made, since=began, capsys=capsys, what="a store wiped")


@pytest.mark.parametrize("parted_s", [20.0, 60.0])
async def test_a_server_that_is_cut_off_is_left_at_once_and_takes_part_again_when_the_network_heals(
    tmp_path: Path, parted_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    async with parted_cluster(tmp_path / "nats") as cluster, training(cluster, tmp_path / "job") as made:
        name = await made.leader(made.sim.topology.ledger.name)
        # One worker is on its side.
        async with running(made.sim.work(name="beside", settings=cluster.servers[name].settings)):
            await eventually(lambda: made.serves("beside", after=0), timeout_s=30.0)
            began = time.monotonic()
            cluster.part(name)
            await asyncio.sleep(parted_s)
            await made.goes_on()
            cluster.heal(name)
            await eventually(made.all_have_everything, timeout_s=60.0)
            healed_at = max(made.sim.stored.values())
            await eventually(lambda: made.serves("beside", after=healed_at), timeout_s=30.0)
            await made.goes_on()
        await check(made, since=began, capsys=capsys, what=f"parted for {parted_s:.0f} s")
