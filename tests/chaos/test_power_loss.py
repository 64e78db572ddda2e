"""The power goes, again and again: what nobody forced onto the disk is gone, of the streams, of the object store and of
the trainer's and the runner's own files. The job goes on each time, and no sample is trained twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.polling import eventually
from tests.support.power_disk import PowerDisk, power_disk
from tests.support.quickstart_job import make_quickstart
from tests.support.sizes import Sizes
from trimtab.dataflow.audit.report import audit
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job

pytestmark = pytest.mark.slow

_NEVER_ENDS = 1_000_000
_EARLY_S = (0.2, 8.0)
"""Some losses come while the job starts,"""
_LATER_S = (0.0, 6.0)
"""the others so long after a step of this start."""


@dataclass
class Run:
    """`trimtab run`, from one loss of power to the next."""

    file: Path
    log: Path

    def __post_init__(self) -> None:
        self._told_before = len(self._told())
        command = [sys.executable, "-m", "trimtab.cli.main", "run", str(self.file)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    async def steps(self, count: int) -> None:
        await eventually(lambda: self._alive() and len(self.told("step")) >= count, timeout_s=180.0)

    def told(self, event: str) -> list[int]:
        """The steps that the trainer has named with such an event since the start."""
        return [line["step"] for line in self._told()[self._told_before :] if line["event"] == event]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(120.0)

    def die(self) -> None:
        """With all that it has started."""
        family = []
        # It may have ended by itself, since it cannot write any more; what it started ends with it.
        with contextlib.suppress(psutil.NoSuchProcess):
            run = psutil.Process(self._process.pid)
            family = [run, *run.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(30.0)
        psutil.wait_procs(family, timeout=30.0)

    @contextlib.contextmanager
    def held(self) -> Iterator[psutil.Process]:
        """It starts nothing again meanwhile. Gives its nats-server; all else goes on."""
        self._process.send_signal(signal.SIGSTOP)
        children = psutil.Process(self._process.pid).children()
        (server,) = [child for child in children if child.name() == "nats-server"]
        yield server
        self._process.send_signal(signal.SIGCONT)

    def _alive(self) -> bool:
        assert self._process.poll() is None, f"the job ended:\n{self.log.read_text()[-4000:]}"
        return True

    def _told(self) -> list[dict[str, Any]]:
        """What is left of the trainer's log: of its end, a loss of power may leave anything."""
        logs = (self.file.parent / ".trimtab" / "power" / "logs").glob("*.trainer.log")
        lines = [_parsed(line) for log in logs for line in log.read_bytes().splitlines()]
        return [line for line in lines if line is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path / "disk", mebibytes=2048) as disk:
        yield disk


@pytest.mark.timeout(3600)
async def test_a_job_goes_on_after_every_loss_of_power(
    disk: PowerDisk, tmp_path: Path, sizes: Sizes, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(20261119)
    file = make_quickstart(disk.folder / "job", name="power", max_steps=_NEVER_ENDS)
    os.sync()
    durable = 0
    for _ in range(sizes.power_losses):
        run = Run(file, tmp_path / "run.log")
        if chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(*_EARLY_S))
        else:
            await run.steps(1)
            assert run.told("step")[0] >= durable, "a checkpoint that was acknowledged is lost"
            await asyncio.sleep(chance.uniform(*_LATER_S))
        durable = max([durable, *run.told("checkpoint")])
        disk.lose_power()
        run.die()
        disk.restore_power()
    run = Run(file, tmp_path / "run.log")
    await run.steps(3)
    assert run.told("step")[0] >= durable
    run.stop()
    await _check(file, losses=sizes.power_losses, capsys=capsys)


@pytest.mark.timeout(3600)
async def test_a_job_goes_on_when_its_bus_alone_loses_its_power(
    tmp_path: Path, sizes: Sizes, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(20261120)
    file = make_quickstart(tmp_path / "job", name="power", max_steps=_NEVER_ENDS)
    with power_disk(file.parent / ".trimtab" / "power" / "nats", mebibytes=1024) as disk:
        run = Run(file, tmp_path / "run.log")
        for _ in range(sizes.bus_power_losses):
            await run.steps(len(run.told("step")) + 2)
            await asyncio.sleep(chance.uniform(*_LATER_S))
            with run.held() as server:
                disk.lose_power()
                server.kill()
                await eventually(lambda: server.status() == psutil.STATUS_ZOMBIE, timeout_s=30.0)
                disk.restore_power()
        await run.steps(len(run.told("step")) + 3)
        run.stop()
        await _check(file, losses=sizes.bus_power_losses, capsys=capsys)


async def _check(file: Path, *, losses: int, capsys: pytest.CaptureFixture[str]) -> None:
    job = read_job(file)
    topology = JobTopology("default", job.metadata.name)
    with EmbeddedNats(file.parent / ".trimtab" / "power" / "nats") as server:
        async with await Bus.connect(server.settings, name="auditor") as bus:
            report = await audit(bus, topology, data=job.spec.data)
            records = (await read_streams(bus, topology)).records
    anchored = [record for record in records if isinstance(record, LedgerAnchoredAnew)]
    with capsys.disabled():
        rows = sum(record.lost_rows for record in anchored)
        sys.stdout.write(
            f"\nlosses of power: {losses}, steps: {report.steps}, anchored anew: {len(anchored)}, {rows} of"
            f" them for lost rows, {sum(record.given_up for record in anchored)} groups given up\n"
        )
    assert report.violations == []
