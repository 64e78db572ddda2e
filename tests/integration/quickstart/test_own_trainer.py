"""A trainer that is not ours runs a job to its end, also when it is killed: the example of docs/trainers.md."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import yaml

from tests.support.polling import eventually, patiently
from tests.support.quickstart_job import make_quickstart
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.pod import read_job
from trimtab.operator.local.job import LocalJob

pytestmark = pytest.mark.slow

_EXAMPLE = Path(__file__).parents[3] / "examples" / "own_trainer"
_STEPS = 20
_KILLED_AT = 3


@pytest.fixture
def job(tmp_path: Path) -> LocalJob:
    make_quickstart(tmp_path, name="unused", max_steps=1)
    manifest = yaml.safe_load((_EXAMPLE / "job.yaml").read_text())
    manifest["spec"]["maxSteps"] = _STEPS
    manifest["spec"]["data"]["batchSize"] = 32
    manifest["spec"]["data"]["prompts"][0]["jsonl"]["uri"] = "prompts.jsonl"
    manifest["spec"]["policies"][0]["model"]["uri"] = "model"
    (tmp_path / "trainer.py").write_text((_EXAMPLE / "trainer.py").read_text())
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest))
    state = tmp_path / "state"
    state.mkdir()
    return LocalJob(read_job(file), job_file=file, folder=state)


def test_the_example_is_short() -> None:
    assert len((_EXAMPLE / "trainer.py").read_text().splitlines()) <= 150


async def test_a_trainer_of_ones_own_trains_every_sample_once_and_survives_its_death(job: LocalJob) -> None:
    running = asyncio.create_task(job.run(asyncio.Event()))
    await eventually(lambda: running.done() or _newest_step(job) >= _KILLED_AT, timeout_s=120.0)
    assert not running.done(), "it ended before it could be killed"
    (trainer,) = [pid for container, pid in job.executor.pids().items() if container.endswith("/trainer")]
    os.kill(trainer, signal.SIGKILL)
    async with patiently(240.0):
        succeeded = await running
    assert succeeded
    assert job.objects.attempts == {"own-trainer-solver": 2}
    report = await _audited(job)
    assert report.violations == []
    assert report.steps == {"solver": _STEPS}
    assert report.trained == {"solver": _STEPS * job.job.spec.data.batch_size}


def _newest_step(job: LocalJob) -> int:
    views = job.watch.policies.values() if job.watch is not None else ()
    return max((view.steps[-1].step for view in views if view.steps), default=-1)


async def _audited(job: LocalJob) -> AuditReport:
    with EmbeddedNats(job.folder / "nats") as server:
        async with await Bus.connect(server.settings, name="auditor") as bus:
            return await audit(bus, job.topology, data=job.job.spec.data)
