"""A task is given up for its own failures only: being handed back never uses up its attempts."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.polling import eventually
from tests.support.rollout.failing_workflows import Faulty, Held
from tests.support.rollout.job import GROUP_SIZE, Job, assert_complete_once, at, line, working
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.streams import delete_stream
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.trajectory import Failed, Scored
from trimtab.rollout.workflows.team import Role

DELIVERIES = 6


async def delivered_often(job: Job) -> bool:
    return (await job.deliveries())[0] >= DELIVERIES


async def assert_scored_once(job: Job) -> None:
    trajectories = await job.trajectories()
    assert_complete_once([trajectory.trajectory_id for trajectory in trajectories], tasks=1)
    assert all(isinstance(trajectory.outcome, Scored) for trajectory in trajectories)
    assert await job.quarantined() == {}


async def test_workers_that_drain_one_after_another(
    job: Job, roles: Mapping[str, Role], nats_settings: NatsSettings
) -> None:
    await job.issue(1)
    for number in range(DELIVERIES):
        held = Held()
        async with await Bus.connect(nats_settings, name=f"w{number}") as own:
            worker = job.worker(
                held, roles, name=f"w{number}", max_deliveries=2, spare_deliveries=0, grace_s=0.0, bus=own
            )
            async with working(worker) as stopping:
                await eventually(lambda held=held: held.begun == GROUP_SIZE, timeout_s=20.0)  # type: ignore[misc]
                stopping.set()
    assert (await job.deliveries())[0] == DELIVERIES
    # It has both its attempts left: the first fails.
    last = job.worker(Faulty(failures=1), roles, max_deliveries=2, spare_deliveries=0)
    async with working(last):
        await eventually(lambda: last.completed == GROUP_SIZE, timeout_s=20.0)
    await assert_scored_once(job)


async def test_weights_that_are_late_by_several_leases(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(1, target_versions={"solver": 2}, minimum_versions={"solver": 2})
    solver = line(served=0, announced=0)
    workflow = Faulty(failures=1)
    worker = job.worker(workflow, roles, max_deliveries=2, spare_deliveries=0, lease_s=0.1, lines={"solver": solver})

    async with working(worker):
        await eventually(lambda: delivered_often(job), timeout_s=30.0)
        solver.served.settle(at(2))
        await eventually(lambda: worker.completed == GROUP_SIZE, timeout_s=20.0)
    assert worker.failures == {"workflow-error": 1}
    await assert_scored_once(job)


async def test_where_hand_backs_cannot_be_counted_a_task_is_still_settled(job: Job, roles: Mapping[str, Role]) -> None:
    await delete_stream(job.bus, job.topology.hand_backs.stream, deadline_s=60.0)
    await job.issue(1)
    worker = job.worker(Faulty(failures=10**6), roles, max_deliveries=3, spare_deliveries=0, hand_back_deadline_s=0.2)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    assert {type(trajectory.outcome) for trajectory in await job.trajectories()} == {Failed}
    assert (await job.quarantined())["task-0"].attempts == 3
