"""Three nats-servers keep every stream of a job; whichever leads the ledger or the trajectories is killed again and
again, while workers, ranks and the dataflow are killed too. Nothing is lost, and nothing trained twice.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from pathlib import Path

import pytest

from tests.support.dataflow.storm.evidence import faults
from tests.support.dataflow.storm.outcome import begin, drain, examine, too_much_waits
from tests.support.dataflow.storm.service import SERVICE, prepare
from tests.support.dataflow.storm.site import Site
from tests.support.dataflow.storm.storm import Sky, Storm
from tests.support.fabric.nats_cluster import NatsCluster, nats_cluster
from tests.support.sizes import Sizes
from tests.support.template_process import template_process
from trimtab.fabric.bus.connection import Bus

_KILL_EVERY_S = 5.0
_NEVER = 1 << 40


async def _kill_leaders(cluster: NatsCluster, site: Site, over: threading.Event, killed: list[str]) -> None:
    streams = [site.topology.ledger.name, site.topology.trajectories.name]
    async with await Bus.connect(cluster.settings, name="storm") as bus:
        while not await asyncio.to_thread(over.wait, _KILL_EVERY_S):
            leader = await cluster.leader_of(bus, streams[len(killed) % 2])
            # A majority must be there: the one killed last has to be back.
            if leader is not None and all(server.pid and server.answers() for server in cluster.servers.values()):
                cluster.servers[leader].kill()
                killed.append(leader)


@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_while_leaders_are_killed(
    tmp_path: Path, sizes: Sizes, capsys: pytest.CaptureFixture[str]
) -> None:
    size = sizes.dataflow_storm
    async with nats_cluster(tmp_path / "nats") as cluster:
        # The servers themselves make the copy for the audit: what is deleted while its leader is dead would be missing.
        site = Site(cluster.settings, tmp_path / "site", replicas=3, compact_after_bytes=_NEVER)
        site.lay_out()
        await begin(site)
        over, killed = threading.Event(), list[str]()
        killing = asyncio.create_task(_kill_leaders(cluster, site, over, killed))
        with template_process(prepare) as template:
            sky = Sky(site, template, random.Random(20261122))
            storm = Storm(sky, seconds=size.seconds, service_kills=size.service_kills)
            try:
                await asyncio.to_thread(storm.rage)
            finally:
                over.set()
            await killing
            await asyncio.to_thread(storm.calm)
            await drain(site, storm)
            storm.stop()
        outcome = await examine(site)
    with capsys.disabled():
        sys.stdout.write(f"\nleaders killed: {len(killed)}, steps: {outcome.report.steps}\n")
    assert outcome.report.violations == []
    assert faults(outcome.notes, outcome.streams) == []
    assert not too_much_waits(outcome.report), outcome.report.waiting
    assert "LedgerError" not in site.log(SERVICE)
    assert len(killed) >= (5 if size.everything else 1)
    assert min(outcome.report.steps.values()) >= size.steps
