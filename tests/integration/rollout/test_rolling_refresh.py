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
from aiohttp import web

from tests.support.polling import eventually, within
from tests.support.rollout.beside import beside
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.engine_proxy import Forward, OnTheWay, engine_behind
from tests.support.rollout.job import GROUP_SIZE, Job, working
from tests.support.rollout.served_policies import POOL, D, WeightsOfJob, own_part, roles_of, weights_of
from tests.support.rollout.token_reference import TokenReference
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.members import beat
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.trajectory import Scored, Trajectory
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.refresh.turns import PoolCensus
from trimtab.rollout.worker.served_policy import ServedPolicy
from trimtab.rollout.worker.worker import Worker
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.weights.store.position import Position

pytestmark = pytest.mark.slow

WORKERS = 4
LAST_VERSION = 6
BACKLOG = 2 * WORKERS


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
    served_policies: list[ServedPolicy[EngineClient]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    issued: int = 0

    async def join(self, url: str, name: str, stack: AsyncExitStack) -> None:
        served_policy = await stack.enter_async_context(self.weights.worker_policy(url, name=name))
        worker = self.weights.job.worker(SingleTurn(), roles_of(served_policy), name=name, max_tasks=1)
        self.served_policies.append(served_policy)
        self.workers.append(worker)

        def sign() -> MemberHeartbeat:
            return MemberHeartbeat(
                member_id=name,
                job=self.weights.job.topology.job,
                role=Role.ROLLOUT,
                pool=POOL.name,
                state=State.READY if served_policy.refresh.ready.is_set() else State.STARTING,
                started_at=1.0,
                sent_at=1.0,
            )

        await stack.enter_async_context(beside(beat(self.weights.members, sign, every_s=0.5)))
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
            lambda: all(
                served_policy.gate.position == position and not served_policy.gate.swapping
                for served_policy in self.served_policies
            ),
            timeout_s=60.0,
            interval_s=0.01,
        )


class Swaps:
    """What goes on at the engines of a pool, by the requests that they get. None gets its weights before another has
    made a token meanwhile.
    """

    def __init__(self, engines: list[EngineProcess], http: aiohttp.ClientSession) -> None:
        self._engines = engines
        self._http = http
        self._paused: set[str] = set()
        self._updating: set[str] = set()
        self.most = 0
        """Engines that were in a swap at a time."""
        self.all = 0
        self.alone: list[str] = []
        """Engines that got their weights without a token of another's."""

    def of(self, engine: EngineProcess) -> OnTheWay:
        async def seen(request: web.Request, forward: Forward) -> web.Response:
            if request.path == "/pause_generation":
                self._begun(self._paused, engine)
            if request.path == "/update_weights_from_disk":
                self.all += 1
                self._begun(self._updating, engine)
                await self._others_go_on(engine)
            answer = await forward(request)
            if request.path == "/update_weights_from_disk":
                self._updating.discard(engine.url)
            if request.path == "/continue_generation":
                self._paused.discard(engine.url)
            return answer

        return seen

    def _begun(self, step: set[str], engine: EngineProcess) -> None:
        step.add(engine.url)
        self.most = max(self.most, len(self._paused | self._updating))

    async def _others_go_on(self, engine: EngineProcess) -> None:
        before = await self._tokens_besides(engine)

        async def more() -> bool:
            return await self._tokens_besides(engine) > before

        try:
            await eventually(more, timeout_s=6.0, interval_s=0.01)
        except AssertionError:
            self.alone.append(engine.url)

    async def _tokens_besides(self, engine: EngineProcess) -> int:
        total = 0
        for other in self._engines:
            if other is not engine:
                async with self._http.get(f"{other.url}/metrics") as response:
                    lines = (await response.text()).splitlines()
                made = (line.split()[1] for line in lines if line.startswith("sglang:generation_tokens_total "))
                total += sum(map(int, made))
        return total


@asynccontextmanager
async def pool_of(weights: WeightsOfJob, engines: list[EngineProcess], swaps: Swaps) -> AsyncIterator[Pool]:
    pool = Pool(weights)
    async with AsyncExitStack() as stack:
        for number, engine in enumerate(engines):
            await engine.serves()
            url = await stack.enter_async_context(engine_behind(engine.url, swaps.of(engine)))
            await pool.join(url, f"w{number}", stack)
        for served_policy in pool.served_policies:
            await within(served_policy.refresh.ready.wait(), 120.0)

        async def all_known() -> bool:
            census = PoolCensus(weights.members, pool=POOL.name, clock=time.monotonic, deadline_s=D)
            return await census.ready_workers() == WORKERS

        await eventually(all_known, timeout_s=20.0)
        yield pool


async def test_a_pool_under_load_is_refreshed_a_worker_at_a_time(
    bus: Bus,
    object_store_settings: ObjectStoreSettings,
    engines: list[EngineProcess],
    models: Path,
    steps: Mapping[int, Path],
    tmp_path: Path,
) -> None:
    async with (
        weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=D)) as http,
    ):
        # Versions 3 and 6 have little in common with those before, and are given whole.
        folders = {version: steps[version] for version in range(LAST_VERSION + 1)} | {3: models / "1", 6: models / "2"}
        publisher = await weights.publisher()
        swaps = Swaps(engines, http)
        enough = asyncio.Event()
        async with pool_of(weights, engines, swaps) as pool, beside(pool.feed(enough)) as feeding:
            await eventually(lambda: all(worker.completed for worker in pool.workers), timeout_s=60.0)
            for version in range(1, LAST_VERSION + 1):
                await weights.publish(publisher, version, model=folders[version])
                await pool.all_serve(Position(publisher.epoch, version))
            # Told and not cancelled: a task that is sent is counted.
            enough.set()
            await feeding
            await eventually(lambda: pool.completed == pool.issued * GROUP_SIZE, timeout_s=60.0)
        trajectories = await weights.job.trajectories()
    assert swaps.all == WORKERS * LAST_VERSION
    assert swaps.most == 1
    assert not swaps.alone
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
