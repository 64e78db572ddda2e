"""SIGKILL of every process of a running job, one after the other: it completes, and its streams are in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.polling import eventually, within
from tests.support.processes import runs
from tests.support.quickstart_job import make_quickstart
from trimtab.dataflow.audit.report import audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.pod import read_job
from trimtab.operator.local.job import LocalJob

pytestmark = pytest.mark.slow

_STEPS = 70
_POLICY = "solver"


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _victims(local: LocalJob) -> dict[str, Callable[[], int]]:
    """How to find the process that is to die, by its part in the job."""

    def container(suffix: str) -> Callable[[], int]:
        return lambda: next(pid for name, pid in local.executor.pids().items() if name.endswith(suffix))

    def rank() -> int:
        return int(psutil.Process(container("/trainer")()).children()[0].pid)

    return {
        "worker": container("/worker"),
        "engine": container(f"/engine-{_POLICY}"),
        "dataflow": container("/dataflow"),
        "trainer rank": rank,
        "nats-server": lambda: local.nats.pid or 0,
        "SeaweedFS": lambda: local.store.pid or 0,
    }


async def test_a_job_survives_the_death_of_each_of_its_processes(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="chaos", max_steps=_STEPS, tasks={"leaseSeconds": 5})
    job = read_job(file)
    local = LocalJob(job, job_file=file, folder=tmp_path / "state")
    running = asyncio.create_task(local.run(asyncio.Event()))

    def step() -> int:
        if running.done():
            raise AssertionError(f"the job ended early: {running.exception() or running.result()}")
        view = local.watch.policies[_POLICY] if local.watch else None
        return view.steps[-1].step if view and view.steps else -1

    await eventually(lambda: step() >= 3, timeout_s=120)
    for part, find in _victims(local).items():
        before = step()
        pid = find()
        _kill(pid)
        # Two more steps prove that the job goes on without waiting for the rest of the run.
        await eventually(partial(_beyond, step, before + 1), timeout_s=120)
        assert not runs(pid), f"{part} is still the process that was killed"
    assert await within(running, 180), "it succeeds"

    with EmbeddedNats(tmp_path / "state" / "nats") as server:
        bus = await Bus.connect(server.settings, name="auditor")
        report = await audit(bus, local.topology, data=job.spec.data)
        await bus.close()
    assert report.violations == []
    assert report.steps == {_POLICY: _STEPS}
    assert report.trained == {_POLICY: _STEPS * job.spec.data.batch_size}


def _beyond(step: Callable[[], int], number: int) -> bool:
    return step() > number
