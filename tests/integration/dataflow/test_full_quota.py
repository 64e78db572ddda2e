"""One of three jobs has stored all that it may: the others train on as before, and it goes on by itself when there is
room, be it that its limit is raised or that what it has trained on is deleted.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest

from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.steady_rank import SteadyRank
from tests.support.dataflow.storm.copies import Copies
from tests.support.polling import eventually
from trimtab.dataflow.audit.report import audit
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.admission_hold import hold_admission
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.streams import declare_stream

pytestmark = pytest.mark.slow

_D = 60.0
_STEP_S = 1.0
_STILL_S = 5.0
_WINDOW_S = 15.0
_KEPT = 0.9


@dataclass(frozen=True)
class Job:
    sim: Simulation
    rank: SteadyRank

    async def bytes_stored(self) -> int:
        info = await api_call(self.sim.bus, f"STREAM.INFO.{self.sim.topology.trajectories.name}", deadline_s=_D)
        return int(info["state"]["bytes"])

    async def may_store(self, max_bytes: int) -> None:
        await declare_stream(self.sim.bus, replace(self.sim.topology.trajectories, max_bytes=max_bytes), deadline_s=_D)

    async def goes_on(self) -> None:
        before = self.rank.steps
        await eventually(lambda: self.rank.steps >= before + 3, timeout_s=30.0)

    async def stands_still(self) -> None:
        """What could be trained is, and nothing comes after it."""

        def for_a_while() -> bool:
            return time.monotonic() - self.rank.answered_at[-1] > _STILL_S

        await eventually(for_a_while, timeout_s=30.0)


async def _more_is_allowed(job: Job) -> None:
    await job.may_store(-1)


async def _what_is_trained_is_deleted(job: Job) -> None:
    """As the operator does when a limit is near: no task is admitted, and the dataflow makes room."""
    full = await job.bytes_stored()
    await hold_admission(job.sim.bus, job.sim.topology, "full", now=time.time(), deadline_s=_D)

    async def has_room() -> bool:
        return await job.bytes_stored() < 0.75 * full

    await eventually(has_room, timeout_s=30.0)
    await hold_admission(job.sim.bus, job.sim.topology, None, now=time.time(), deadline_s=_D)


async def _step_times(jobs: Sequence[Job]) -> list[list[float]]:
    """What each step took, of each job."""
    since = time.monotonic()
    await asyncio.sleep(_WINDOW_S)
    ends = [[at for at in job.rank.trained_at if at > since] for job in jobs]
    return [[after - before for before, after in itertools.pairwise(one)] for one in ends]


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[list[Job]]:
    with EmbeddedNats(tmp_path / "nats") as server:
        async with AsyncExitStack() as stack:
            made = []
            for name in ("a", "b", "c"):
                (tmp_path / name).mkdir()
                sim = await stack.enter_async_context(simulation(server.settings, tmp_path / name, maxSteps=1_000_000))
                await Copies(sim.topology).begin(sim.bus)
                made.append(Job(sim, SteadyRank(sim, step_s=_STEP_S)))
            yield made


async def test_a_job_at_its_limit_stops_alone_and_goes_on_when_there_is_room(
    jobs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    full, *others = jobs
    work = [
        loop
        for job in jobs
        for loop in (job.sim.restarting_service(lambda: math.inf), job.sim.work(), job.rank.train())
    ]
    before = [list[float]() for _ in others]
    meanwhile = [list[float]() for _ in others]
    healed_s = list[float]()
    async with running(*work):
        # In turns: what a machine has left for all of them changes by the minute.
        for room_comes_back in (_more_is_allowed, _what_is_trained_is_deleted):
            for job in jobs:
                await job.goes_on()
            for times, more in zip(before, await _step_times(others), strict=True):
                times += more
            await full.may_store(await full.bytes_stored())
            await full.stands_still()
            steps = full.rank.steps
            for times, more in zip(meanwhile, await _step_times(others), strict=True):
                times += more
            assert full.rank.steps == steps
            await room_comes_back(full)
            freed_at = time.monotonic()
            await full.goes_on()
            healed_s.append(next(at for at in full.rank.answered_at if at > freed_at) - freed_at)
            await full.may_store(-1)
    kept = [median(then) / median(now) for then, now in zip(before, meanwhile, strict=True)]
    with capsys.disabled():
        sys.stdout.write(
            f"\nthe others kept {', '.join(f'{ratio:.2f}' for ratio in kept)} of"
            f" {1 / median(before[0]):.2f} steps/s, the full one went on after {max(healed_s):.1f} s\n"
        )
    for job in jobs:
        copies = Copies(job.sim.topology)
        await copies.catch_up(job.sim.bus)
        report = await audit(
            job.sim.bus,
            job.sim.topology,
            data=job.sim.job.spec.data,
            ledger=copies.ledger,
            trajectories=copies.trajectories,
        )
        assert report.violations == []
        assert job.sim.incarnations == 1
    assert min(kept) >= _KEPT
