"""The files in which nats-server keeps a job's streams are torn off at random places while it is down, or have a wrong
bit in a message. The job goes on, and no sample is in the weights twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import patiently
from trimtab.embedded.nats_server import EmbeddedNats

pytestmark = pytest.mark.slow

_TURNS = 4
_RECORD_HEAD = 22
_LENGTH = (1 << 31) - 1
"""The other bit says whether the message has headers."""

Damage = Callable[[Path, random.Random], None]


def _tear(block: Path, chance: random.Random) -> None:
    os.truncate(block, chance.randrange(block.stat().st_size))


def _flip(block: Path, chance: random.Random) -> None:
    """A bit of what a message says, which its checksum covers. With one in its length or number, nats-server drops the
    rest of the block, or says that it stores what it cannot read, until it is started again.
    """
    content = bytearray(block.read_bytes())
    records, start = [], 0
    while start < len(content):
        length = int.from_bytes(content[start : start + 4], "little") & _LENGTH
        records.append((start, length))
        start += length
    start, length = chance.choice(records)
    content[start + chance.randrange(_RECORD_HEAD, length)] ^= 1 << chance.randrange(8)
    block.write_bytes(content)


async def _damage(server: EmbeddedNats, stream: str, how: Damage, chance: random.Random) -> None:
    """One of the stream's blocks, after an end in good order or by SIGKILL."""
    if chance.random() < 0.5:
        server.kill()
    await asyncio.to_thread(server.stop)
    blocks = sorted(one for one in server.data_folder.rglob(f"{stream}/msgs/*.blk") if one.stat().st_size)
    if blocks:
        how(chance.choice(blocks), chance)
    await asyncio.to_thread(server.start)


def _streams(sim: Simulation) -> dict[str, str]:
    made = sim.topology
    return {"ledger": made.ledger.name, "trajectories": made.trajectories.name, "tasks": made.tasks.name}


@pytest.mark.parametrize("how", [_tear, _flip])
@pytest.mark.parametrize("which", ["ledger", "trajectories", "tasks"])
async def test_a_job_goes_on_when_a_file_of_a_stream_is_damaged(
    tmp_path: Path, which: str, how: Damage, capsys: pytest.CaptureFixture[str]
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
                await _damage(server, _streams(sim)[which], how, chance)
            async with running(sim.work()), sim.service(), patiently(60.0):
                await trainer.restart()
                await trainer.train(4)
            trainer.check()
    with capsys.disabled():
        sys.stdout.write(f"\n{which} damaged {_TURNS} times, the trainer proved its step {trainer.anchored} times\n")
