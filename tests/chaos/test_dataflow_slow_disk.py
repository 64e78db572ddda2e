"""The disk under NATS becomes slower and slower, and every message waits for it: the job is slow, loses nothing, trains
nothing twice, and is fast again with its disk.
"""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path

import pytest

from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import running, simulation
from tests.support.fabric.synced_nats import SyncedNats
from tests.support.polling import patiently
from tests.support.slow_disk import slow_disk
from trimtab.dataflow.audit.report import audit

pytestmark = pytest.mark.slow

_WRITES_PER_S = (0, 100, 20, 10, 0)
_STEPS = 4


@pytest.mark.timeout(1200)
async def test_a_job_whose_disk_becomes_slow_is_slow_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = asyncio.get_running_loop().time
    with slow_disk(tmp_path / "disk", mebibytes=512) as disk, SyncedNats(disk.folder / "nats") as server:
        async with simulation(server.settings, tmp_path) as sim:
            trainer = LineageTrainer(sim)
            took_s = []
            async with running(sim.work(), sim.restarting_service(lambda: math.inf)):
                await trainer.train(1)
                for writes in _WRITES_PER_S:
                    disk.limit_writes(writes)
                    began = clock()
                    async with patiently(300.0):
                        await trainer.train(_STEPS)
                    took_s.append(round(clock() - began, 1))
            trainer.check()
            report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
    with capsys.disabled():
        pace = dict(zip(("at first", *_WRITES_PER_S[1:-1], "at last"), took_s, strict=True))
        sys.stdout.write(f"\nseconds for {_STEPS} steps, by writes a second: {pace}, starts: {sim.incarnations}\n")
    assert report.violations == []
    assert trainer.anchored == 0, "nothing was lost"
    assert took_s[-1] < took_s[-2], "it is fast again"
