"""A worker takes what its weights are fresh enough for: a task waits for its minimum, and lag makes for fewer tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from structlog.testing import capture_logs

from tests.support.polling import eventually
from tests.support.rollout.failing_workflows import Faulty, Held
from tests.support.rollout.job import GROUP_SIZE, QUICK, Job, at, line, working
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Role


async def test_a_task_is_not_run_before_the_version_that_it_asks_for_is_served(job: Job) -> None:
    sampler = EchoSampler()
    solver = line(served=0, announced=0)
    await job.issue(1, target_versions={"solver": 2}, minimum_versions={"solver": 2})
    await job.issue(3)  # two of them are new, and ask for nothing
    worker = job.worker(SingleTurn(), {"solver": role(sampler)}, lines={"solver": solver}, max_tasks=4)
    async with working(worker):
        await eventually(lambda: worker.completed == 2 * GROUP_SIZE, timeout_s=20.0)
        solver.served.settle(at(1))
        await eventually(lambda: worker.in_flight == 1, timeout_s=10.0)
        asked = len(sampler.asked)
        assert asked == 2 * GROUP_SIZE
        solver.served.settle(at(2))
        sampler.version = 2
        await eventually(lambda: worker.completed == 3 * GROUP_SIZE, timeout_s=20.0)
    # It was kept all the while: no delivery was spent on waiting.
    assert await job.deliveries() == (3, 0)
    waited = [trajectory for trajectory in await job.trajectories() if trajectory.task_id == "task-0"]
    assert {trajectory.oldest_version for trajectory in waited} == {2}


async def test_a_draining_worker_hands_back_at_once_what_waits_for_weights(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(1, target_versions={"solver": 2}, minimum_versions={"solver": 2})
    worker = job.worker(SingleTurn(), roles, lines={"solver": line(served=0, announced=0)}, grace_s=3600.0)
    async with working(worker) as stopping:
        await eventually(lambda: worker.in_flight == 1, timeout_s=20.0)
        stopping.set()
    assert worker.completed == 0
    assert await job.tasks_left() == 1
    fresh = job.worker(SingleTurn(), roles, lines={"solver": line(served=2, announced=2)})
    async with working(fresh):
        await eventually(lambda: fresh.completed == GROUP_SIZE, timeout_s=20.0)


async def test_a_worker_that_lags_behind_takes_fewer_tasks(job: Job, roles: Mapping[str, Role]) -> None:
    held = Held()
    solver = line(served=2, announced=5)
    await job.issue(8)
    worker = job.worker(held, roles, lines={"solver": solver}, max_staleness=3, max_tasks=4)
    assert worker.allowance == 2
    async with working(worker):
        await eventually(lambda: held.begun == 2 * GROUP_SIZE, timeout_s=20.0)
        assert (await job.deliveries())[1] == 2
        assert worker.in_flight == 2
        solver.served.settle(at(5))
        await eventually(lambda: held.begun == 4 * GROUP_SIZE, timeout_s=20.0)
        assert (await job.deliveries())[1] == 4
        held.open.set()
        await eventually(lambda: worker.completed == 8 * GROUP_SIZE, timeout_s=20.0)


async def test_a_worker_whose_samples_would_be_too_old_takes_none_says_so_once_and_goes_on_when_fresh(
    job: Job, roles: Mapping[str, Role]
) -> None:
    looks = 0

    class LookedAt(Freshness):
        def allowance(self, max_tasks: int) -> int:
            nonlocal looks
            looks += 1
            return super().allowance(max_tasks)

    workflow = Faulty(failures=0)
    solver = line(served=1, announced=4)
    await job.issue(3)
    freshness = LookedAt({"solver": solver}, max_staleness=2)
    timings = replace(QUICK, weights_poll_s=0.02, behind_warning_s=0.1)
    worker = job.worker(workflow, roles, freshness=freshness, timings=timings)

    def warnings() -> list[int]:
        return [entry["lag"] for entry in logs if entry["event"] == "no_tasks_until_weights_are_fresh"]

    with capture_logs() as logs:
        async with working(worker):
            await eventually(lambda: warnings() == [3], timeout_s=20.0)
            solver.announcements.note(6)
            assert worker.allowance == 0
            seen = looks
            await eventually(lambda: looks >= seen + 5, timeout_s=20.0)
            assert warnings() == [3]
            assert await job.deliveries() == (0, 0)
            solver.served.settle(at(6))
            await eventually(lambda: worker.completed == 3 * GROUP_SIZE, timeout_s=20.0)
