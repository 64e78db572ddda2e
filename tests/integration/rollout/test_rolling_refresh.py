"""A pool of four workers under load gets version after version: it never stops serving, and every token has the version
that sampled it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.support.polling import eventually, within
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import GROUP_SIZE, Job, working
from tests.support.rollout.seats import POOL, D, WeightsOfJob, own_part, roles_of, weights_of
from tests.support.rollout.token_reference import TokenReference
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.members import beat
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.trajectory import Scored, Trajectory
from trimtab.rollout import pool_census, swap_turns
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.policy_seat import PolicySeat
from trimtab.rollout.pool_census import PoolCensus
from trimtab.rollout.weight_swap import Give, WeightSwap
from trimtab.rollout.worker import Worker
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.weights.store.position import Position

WORKERS = 4
LAST_VERSION = 6
BACKLOG = 2 * WORKERS
# Far longer than a pause, so that only a pool that has stopped has one without a token, and no machine that is busy.
WINDOW_S = 5.0


@pytest.fixture(scope="module")
def engines(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    processes = [EngineProcess(models / "0", tmp_path_factory.mktemp(f"engine{n}")) for n in range(WORKERS)]
    for process in processes:
        process.start()
    yield processes
    for process in processes:
        process.kill()


@dataclass
class Pool:
    """Four workers with their engines and heartbeats, and what they are given to do."""

    weights: WeightsOfJob
    seats: list[PolicySeat[EngineClient]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    issued: int = 0

    async def join(self, url: str, name: str, stack: AsyncExitStack) -> None:
        seat = await stack.enter_async_context(self.weights.worker_seat(url, name=name))
        worker = self.weights.job.worker(SingleTurn(), roles_of(seat), name=name, max_tasks=1)
        self.seats.append(seat)
        self.workers.append(worker)

        def sign() -> MemberHeartbeat:
            return MemberHeartbeat(
                member_id=name,
                job=self.weights.job.topology.job,
                role=Role.ROLLOUT,
                pool=POOL.name,
                state=State.READY if seat.refresh.ready.is_set() else State.STARTING,
                started_at=1.0,
                sent_at=1.0,
            )

        beats = asyncio.create_task(beat(self.weights.members, sign, every_s=0.5))
        stack.callback(beats.cancel)
        await stack.enter_async_context(working(worker))

    @property
    def completed(self) -> int:
        return sum(worker.completed for worker in self.workers)

    async def feed(self, enough: asyncio.Event) -> None:
        """There is always something to do, until there has been enough of it."""
        while not enough.is_set():
            if self.issued * GROUP_SIZE - self.completed < BACKLOG * GROUP_SIZE:
                name = f"t{self.issued}"
                await self.weights.job.issue(1, task_id=name, prompt_id=name, seed=self.issued)
                self.issued += 1
            else:
                await asyncio.sleep(0.02)

    async def all_serve(self, position: Position) -> None:
        await eventually(
            lambda: all(seat.gate.position == position and not seat.gate.swapping for seat in self.seats),
            timeout_s=60.0,
            interval_s=0.01,
        )


@asynccontextmanager
async def pool_of(weights: WeightsOfJob, engines: list[EngineProcess]) -> AsyncIterator[Pool]:
    pool = Pool(weights)
    async with AsyncExitStack() as stack:
        for number, engine in enumerate(engines):
            await pool.join(engine.url, f"w{number}", stack)
        for seat in pool.seats:
            await within(seat.refresh.ready.wait(), 120.0)

        async def all_known() -> bool:
            return await PoolCensus(weights.members, pool=POOL.name, clock=time.monotonic).ready_workers() == WORKERS

        await eventually(all_known, timeout_s=20.0)
        yield pool


class SwapCount:
    """How many swaps go on, and the most there were at a time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.all = 0

    def counted(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        original = getattr(WeightSwap, name)

        async def swap(this: WeightSwap, position: Position, give: Give) -> float:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
            try:
                return float(await original(this, position, give))
            finally:
                self.now -= 1

        monkeypatch.setattr(WeightSwap, name, swap)


async def generated_tokens(http: aiohttp.ClientSession, engines: list[EngineProcess]) -> int:
    total = 0
    for engine in engines:
        async with http.get(f"{engine.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("sglang:generation_tokens_total "))
    return total


async def watch_throughput(engines: list[EngineProcess], seen: list[tuple[float, int]]) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=D)) as http:
        while True:
            seen.append((time.monotonic(), await generated_tokens(http, engines)))
            await asyncio.sleep(0.1)


def longest_silence(seen: list[tuple[float, int]]) -> float:
    """Seconds without a token of any engine."""
    grown_at, tokens = seen[0]
    longest = 0.0
    for at, now in seen[1:]:
        longest = max(longest, at - grown_at)
        if now > tokens:
            grown_at, tokens = at, now
    return longest


async def test_a_pool_under_load_is_refreshed_a_worker_at_a_time(
    bus: Bus,
    object_store_settings: ObjectStoreSettings,
    engines: list[EngineProcess],
    models: Path,
    steps: Mapping[int, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights:
        # Versions 3 and 6 have little in common with those before, and are given whole.
        folders = {version: steps[version] for version in range(LAST_VERSION + 1)} | {3: models / "1", 6: models / "2"}
        publisher = await weights.publisher()
        throughput: list[tuple[float, int]] = []
        count = SwapCount()
        async with pool_of(weights, engines) as pool:
            # Without an answer for two seconds they would swap without a turn.
            for module in (pool_census, swap_turns):
                monkeypatch.setattr(module, "_DEADLINE_S", D)
            for name in ("under_running_requests", "between_requests"):
                count.counted(monkeypatch, name)
            enough = asyncio.Event()
            feeding = asyncio.create_task(pool.feed(enough))
            await eventually(lambda: all(worker.completed for worker in pool.workers), timeout_s=60.0)
            watching = asyncio.create_task(watch_throughput(engines, throughput))
            for version in range(1, LAST_VERSION + 1):
                await weights.publish(publisher, version, model=folders[version])
                await pool.all_serve(Position(publisher.epoch, version))
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            # Told and not cancelled: a task that is sent is counted.
            enough.set()
            await feeding
            await eventually(lambda: pool.completed == pool.issued * GROUP_SIZE, timeout_s=60.0)
        trajectories = await weights.job.trajectories()
    assert count.all == WORKERS * LAST_VERSION
    assert count.most == 1
    assert longest_silence(throughput) < WINDOW_S
    assert len(trajectories) == pool.issued * GROUP_SIZE
    check(trajectories, TokenReference(folders))


def check(trajectories: list[Trajectory], reference: TokenReference) -> None:
    """All whose tokens are of several versions, and some of the others."""
    assert all(isinstance(trajectory.outcome, Scored) for trajectory in trajectories)
    crossed = [each for each in trajectories if each.oldest_version != each.newest_version]
    assert crossed
    others = [each for each in trajectories if each.oldest_version == each.newest_version]
    for trajectory in crossed + others[:: max(1, len(others) // 50)]:
        reference.check(trajectory)
    versions = {span.version for each in trajectories for span in each.spans if span.version is not None}
    assert versions <= set(range(LAST_VERSION + 1))
    assert len(versions) > 2
