"""A running job is upgraded role by role, and rolled back: nothing is lost and nothing is trained twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support.audited_job import audited
from tests.support.polling import eventually, within
from tests.support.processes import runs
from tests.support.quickstart_job import logged_steps, make_quickstart, trainer_log
from tests.support.released.images import RoleVersions
from tests.support.released.next_version import ADDED, FIELD, RECORD, make_next
from trimtab.cli.job_bucket import entries_on
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.pod import read_job
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.member import MemberHeartbeat
from trimtab.operator.local.job import LocalJob

pytestmark = pytest.mark.slow

_ENDLESS = 1_000_000
_POLICY = "solver"
_CONTAINERS = {"dataflow": ("/dataflow",), "rollout": ("/worker", f"/engine-{_POLICY}"), "trainer": ("/trainer",)}


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    """A job that runs, whose roles may be given another version."""

    local: LocalJob
    file: Path
    versions: RoleVersions
    running: asyncio.Task[bool]

    def step(self) -> int:
        if self.running.done():
            raise AssertionError(f"the job ended early: {self.running.exception() or self.running.result()}")
        view = self.local.watch.policies[_POLICY] if self.local.watch else None
        return view.steps[-1].step if view and view.steps else -1

    async def goes_on(self, *, steps: int = 2) -> None:
        """Rows that were under way when a process was replaced may be enough for one."""
        beyond = self.step() + steps
        await eventually(lambda: self.step() >= beyond, timeout_s=120)

    async def roll(self, role: str, tree: Path | None) -> None:
        """As a cluster does it: the process is asked to end, and the next one begins with another image."""
        self.versions.set(role, tree)
        for suffix in _CONTAINERS[role]:
            pids = [pid for name, pid in self.local.executor.pids().items() if name.endswith(suffix)]
            assert pids, f"there is no {suffix}"
            # Ranks end together: one that is gone ends the others' attempt.
            await asyncio.gather(*map(_ended, pids))
        said = None if tree is None else ADDED
        await eventually(lambda: self._says(role, said), timeout_s=60, interval_s=0.5)

    async def _says(self, role: str, said: str | None) -> bool:
        """Whether all members of the role are of that version, and of those that live now."""
        topology = self.local.topology
        async with await Bus.connect(self.local.nats.settings, name="test") as bus:
            beats = [
                decode(one.value, MemberHeartbeat)
                for one in await entries_on(bus, topology, topology.members, keys=">")
            ]
        found = [beat.newer.get(FIELD) for beat in beats if beat.role == role]
        return bool(found) and all(one == said for one in found)


async def _ended(pid: int) -> None:
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGTERM)
    await eventually(lambda: not runs(process), timeout_s=60)


@asynccontextmanager
async def upgraded(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, ranks: int) -> AsyncIterator[Upgraded]:
    file = make_quickstart(folder, name=name, max_steps=_ENDLESS)
    manifest = yaml.safe_load(file.read_text())
    (policy,) = manifest["spec"]["policies"]
    policy.setdefault("trainer", {})["replicas"] = ranks
    file.write_text(yaml.safe_dump(manifest))
    local = LocalJob(read_job(file), job_file=file, folder=folder / ".trimtab" / name)
    versions, stopping = RoleVersions(folder / "versions", monkeypatch), asyncio.Event()
    running = asyncio.create_task(local.run(stopping))
    try:
        yield Upgraded(local=local, file=file, versions=versions, running=running)
    finally:
        stopping.set()
        await within(running, 120)


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_job_is_upgraded_and_rolled_back_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    later = make_next(tmp_path / "next")
    async with upgraded(tmp_path, monkeypatch, "upgraded", ranks=ranks) as job:
        await eventually(lambda: job.step() >= 3, timeout_s=120)
        for role in RoleVersions.ROLES:
            await job.roll(role, later)
            await job.goes_on()
        for role in RoleVersions.ROLES:
            await job.roll(role, None)
            await job.goes_on()
        reached = job.step()
    logs = job.local.folder / "logs"
    dataflow = [
        json.loads(line)
        for file in logs.glob("*.dataflow.log")
        for line in file.read_text().splitlines()
        if line.startswith("{")
    ]
    passed = [line for line in dataflow if line["event"] == "newer_record_passed_over"]
    assert {line["kind"] for line in passed} == {RECORD}, "the older dataflow met a record of the newer one"

    report = await asyncio.to_thread(audited, job.local.folder, job.file)
    assert report.violations == []
    granted, batch = report.steps[_POLICY], job.local.job.spec.data.batch_size
    # A portion of the step that was under way when the job was stopped may have been given out.
    assert granted * batch <= report.trained[_POLICY] < (granted + 1) * batch
    first_rank = f"{_POLICY}-trainer-0"
    steps = logged_steps(job.file, policy=first_rank)
    done = sorted({line["step"] for line in steps})
    assert done == list(range(len(done))), "the curve has no gap"
    assert reached <= len(done) <= granted
    # Engine and trainer of two versions have the same weights.
    assert all(off < 1e-3 for line in steps if (off := line["logprob_mismatch"]) is not None)
    resumed = [line["step"] for line in trainer_log(job.file, policy=first_rank) if line["event"] == "resumed"]
    assert len(resumed) >= 2
