"""The files in which nats-server keeps a job's streams are torn off at random places while it is down. The job goes on,
and no sample is in the weights twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest

from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import patiently
from trimtab.embedded.nats_server import EmbeddedNats

pytestmark = pytest.mark.slow

_TURNS = 4


async def _tear(server: EmbeddedNats, stream: str, chance: random.Random) -> None:
    """One of the stream's blocks, after an end in good order or by SIGKILL."""
    if chance.random() < 0.5:
        server.kill()
    await asyncio.to_thread(server.stop)
    blocks = sorted(one for one in server.data_folder.rglob(f"{stream}/msgs/*.blk") if one.stat().st_size)
    if blocks:
        block = chance.choice(blocks)
        os.truncate(block, chance.randrange(block.stat().st_size))
    await asyncio.to_thread(server.start)


def _streams(sim: Simulation) -> dict[str, str]:
    made = sim.topology
    return {"ledger": made.ledger.name, "trajectories": made.trajectories.name, "tasks": made.tasks.name}


@pytest.mark.parametrize("which", ["ledger", "trajectories", "tasks"])
async def test_a_job_goes_on_when_a_file_of_a_stream_is_torn(
    tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(20261119)
    with EmbeddedNats(tmp_path / "nats", supervise=False) as server:
        async with simulation(server.settings, tmp_path, prompts=500) as sim:
            trainer = LineageTrainer(sim)
            for _ in range(_TURNS):
                async with running(sim.work()), sim.service(), patiently(60.0):
                    await trainer.restart()
                    await trainer.train(chance.randrange(2, 8))
                trainer.check()
                await _tear(server, _streams(sim)[which], chance)
            async with running(sim.work()), sim.service(), patiently(60.0):
                await trainer.restart()
                await trainer.train(4)
            trainer.check()
    with capsys.disabled():
        sys.stdout.write(f"\n{which} torn {_TURNS} times, the trainer proved its step {trainer.anchored} times\n")
