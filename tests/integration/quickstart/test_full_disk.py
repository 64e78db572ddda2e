"""`trimtab run` on a disk that fills while the job trains: it says so, stands still, and goes on by itself when there
is room. Nothing is lost, and nothing trained twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.polling import eventually
from tests.support.quickstart_job import make_quickstart
from tests.support.small_disk import small_disk
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job

_STEPS = 25
_STANDS_STILL_S = 20.0


async def _audit(file: Path, state: Path) -> AuditReport:
    with EmbeddedNats(state / "nats") as server:
        bus = await Bus.connect(server.settings, name="auditor")
        report = await audit(bus, JobTopology("default", "small"), data=read_job(file).spec.data)
        await bus.close()
    return report


@pytest.mark.slow
async def test_a_job_on_a_disk_that_fills_goes_on_when_there_is_room(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="small", max_steps=_STEPS)
    # An auditor reads all that ever was: by a checkpoint in between, the dataflow would make room.
    job = yaml.safe_load(file.read_text())
    job["spec"]["policies"][0]["trainer"]["checkpoint"] = {"everySteps": 10 * _STEPS}
    file.write_text(yaml.safe_dump(job))
    output = tmp_path / "out.txt"

    def said(what: str) -> bool:
        assert process.poll() in (None, 0), output.read_text()
        return what in output.read_text()

    with small_disk(tmp_path / "disk", mebibytes=1200) as disk:
        state = disk.folder / "state"
        command = [sys.executable, "-m", "trimtab.cli.main", "run", str(file), "--state-folder", str(state)]
        with output.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            await eventually(lambda: said("  step 5  "), timeout_s=240.0)
            disk.fill()
            await eventually(lambda: said("WaitingForRoom"), timeout_s=60.0)
            assert "the job goes on by itself" in output.read_text()
            still = asyncio.get_running_loop().time() + _STANDS_STILL_S
            await eventually(lambda: said("Failed") or asyncio.get_running_loop().time() > still, timeout_s=60.0)
            assert "Failed" not in output.read_text()
            disk.free()
            await eventually(lambda: process.poll() is not None, timeout_s=400.0)
            assert process.returncode == 0, output.read_text()
            report = await _audit(file, state)
        finally:
            process.kill()
            process.wait()
    assert report.violations == []
    assert report.steps == {"solver": _STEPS}
    assert report.trained == {"solver": _STEPS * read_job(file).spec.data.batch_size}
