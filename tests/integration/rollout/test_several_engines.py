"""Several engines of one policy in a pod: requests are spread over them, each has the newest weights, and one that dies
takes nothing with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.polling import eventually, within
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import GROUP_SIZE, Job, working
from tests.support.rollout.served_policies import D, WeightsOfJob, own_part, reset, roles_of, weights_of
from tests.support.rollout.token_reference import TokenReference
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.trajectory import Scored
from trimtab.rollout.worker.served_engines import ServedEngines
from trimtab.rollout.workflows.single_turn import SingleTurn


@pytest.fixture(scope="module")
def second_process(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(models / "0", tmp_path_factory.mktemp("second"))
    process.start()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def reference(models: Path) -> TokenReference:
    return TokenReference({version: models / str(version % 3) for version in range(10)})


@pytest.fixture
async def both(
    bus: Bus,
    object_store_settings: ObjectStoreSettings,
    models: Path,
    tmp_path: Path,
    engine_process: EngineProcess,
    second_process: EngineProcess,
) -> AsyncIterator[tuple[WeightsOfJob, ServedEngines]]:
    """Two engines of one policy."""
    processes = (engine_process, second_process)
    for process in processes:
        await reset(process, models)
    async with (
        weights_of(await Job.open(bus), own_part(object_store_settings), models, tmp_path) as weights,
        weights.worker_engines(*(process.url for process in processes)) as engines,
    ):
        await within(engines.ready(), D)
        yield weights, engines


def _all_serve(engines: ServedEngines, version: int) -> bool:
    return all(seat.gate.version == version for seat in engines.seats)


async def test_all_engines_serve_the_newest_weights_and_every_token_has_the_version_of_the_one_that_sampled_it(
    both: tuple[WeightsOfJob, ServedEngines], reference: TokenReference
) -> None:
    weights, engines = both
    publisher = await weights.publisher()
    await weights.job.issue(6)
    worker = weights.job.worker(SingleTurn(), roles_of(engines), max_tasks=4)
    async with working(worker):
        for version in range(1, 4):
            await weights.publish(publisher, version)
            await eventually(partial(_all_serve, engines, version), timeout_s=60.0, interval_s=0.01)
        await weights.job.issue(1, task_id="last", prompt_id="last")
        await eventually(lambda: worker.completed == 7 * GROUP_SIZE, timeout_s=90.0)
    trajectories = await weights.job.trajectories()
    assert len(trajectories) == 7 * GROUP_SIZE
    for trajectory in trajectories:
        assert isinstance(trajectory.outcome, Scored)
        reference.check(trajectory)
    assert min(engines.sampler.sent) >= 2 * GROUP_SIZE, "both had their share"
    for seat in engines.seats:
        assert (await seat.engine.model_info(timeout_s=D)).weight_version == f"{publisher.epoch}.3"  # type: ignore[attr-defined]


async def test_while_one_engine_is_dead_the_other_serves_and_the_worker_is_not_held_up(
    both: tuple[WeightsOfJob, ServedEngines], second_process: EngineProcess, reference: TokenReference
) -> None:
    weights, engines = both
    publisher = await weights.publisher()
    await weights.publish(publisher, 1)
    await eventually(partial(_all_serve, engines, 1), timeout_s=60.0)
    second_process.kill()
    try:
        await weights.job.issue(4)
        worker = weights.job.worker(SingleTurn(), roles_of(engines), max_tasks=4)
        async with working(worker):
            await eventually(lambda: worker.completed == 4 * GROUP_SIZE, timeout_s=90.0)
            await weights.publish(publisher, 2)
            await eventually(lambda: engines.version == 2, timeout_s=60.0, interval_s=0.01)
            assert engines.seats[1].sampler.away
            assert engines.line.lag == 0, "an engine that is dead serves nothing that could be too old"
    finally:
        second_process.start()
    await eventually(partial(_all_serve, engines, 2), timeout_s=90.0)
    for trajectory in await weights.job.trajectories():
        assert isinstance(trajectory.outcome, Scored)
        reference.check(trajectory)
