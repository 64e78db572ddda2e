"""The worker on a real bus: nothing acknowledged before it is stored, nothing lost, no failure become a reward."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from pydantic import SecretStr

from tests.support.polling import eventually
from tests.support.rollout.failing_workflows import Faulty, Held
from tests.support.rollout.huge_rows import Huge
from tests.support.rollout.job import GROUP_SIZE, QUICK, Job, assert_complete_once, working
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer, declare_stream
from trimtab.fabric.bus.topology import TASK_CONSUMER, ConsumerSpec, JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.trajectory import Failed, Scored, Trajectory
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Assignment, Episode, Role, Team


async def test_every_task_becomes_a_stored_group_and_only_then_leaves_the_queue(
    job: Job, roles: Mapping[str, Role]
) -> None:
    await job.issue(6)
    worker = job.worker(SingleTurn(), roles)
    async with working(worker):
        await eventually(lambda: worker.completed == 6 * GROUP_SIZE, timeout_s=20.0)
        assert await job.tasks_left() == 0
    trajectories = await job.trajectories()
    assert_complete_once([trajectory.trajectory_id for trajectory in trajectories], tasks=6)
    assert all(isinstance(trajectory.outcome, Scored) for trajectory in trajectories)
    assert not worker.failures


class OneLingers(SingleTurn):
    """Of each group all episodes but one are done at once; that one has a slow tool."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.tool = asyncio.Event()

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        self.begun += 1
        if task.request_id.endswith(".0"):
            await self.tool.wait()
        return await super().run(task, team)


async def test_a_consumer_that_the_server_has_lost_is_made_again(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(3)
    lingering = OneLingers()
    worker = job.worker(lingering, roles, max_tasks=1)
    async with working(worker):
        await eventually(lambda: lingering.begun == GROUP_SIZE, timeout_s=20.0)
        # As a loss of power leaves it: the stream is there, the younger file of its consumer is not.
        await api_call(job.bus, f"CONSUMER.DELETE.{job.topology.tasks.name}.{TASK_CONSUMER}", deadline_s=10.0)
        lingering.tool.set()
        await eventually(job.settled, timeout_s=20.0)
    stored = {trajectory.trajectory_id for trajectory in await job.trajectories()}
    assert_complete_once(sorted(stored), tasks=3)


async def test_places_of_ended_episodes_go_to_other_groups_and_never_more_episodes_run_than_allowed(
    job: Job, roles: Mapping[str, Role]
) -> None:
    await job.issue(20)
    lingering = OneLingers()
    worker = job.worker(lingering, roles, max_tasks=2)
    # A place is left to each group in the end, and a group needs all its places free to begin.
    most_groups = 2 * GROUP_SIZE - (GROUP_SIZE - 1)
    async with working(worker):
        await eventually(lambda: lingering.begun == most_groups * GROUP_SIZE, timeout_s=20.0)
        assert worker.in_flight == most_groups
        assert worker.load <= worker.allowance
        lingering.tool.set()
        await eventually(lambda: worker.completed == 20 * GROUP_SIZE, timeout_s=20.0)
    assert worker.load == 0
    assert_complete_once([trajectory.trajectory_id for trajectory in await job.trajectories()], tasks=20)


async def test_what_cannot_be_stored_is_kept_until_it_can_and_not_sampled_again(
    job: Job, roles: Mapping[str, Role]
) -> None:
    full = JobTopology("t", job.topology.job, trajectories_max_bytes=10)
    await declare_stream(job.bus, full.trajectories, deadline_s=60.0)
    await job.issue(2)
    workflow = Faulty(failures=0)
    worker = job.worker(workflow, roles, max_deliveries=1, timings=replace(QUICK, publish_deadline_s=0.3))
    async with working(worker):
        await eventually(lambda: refusals(job) >= 6, timeout_s=30.0)
        assert worker.completed == 0
        assert worker.in_flight == 2
        assert await job.tasks_left() == 2
        await declare_stream(job.bus, job.topology.trajectories, deadline_s=60.0)
        await eventually(lambda: worker.completed == 2 * GROUP_SIZE, timeout_s=60.0)
    assert workflow.most_attempts == 1
    assert await job.tasks_left() == 0
    assert_complete_once([trajectory.trajectory_id for trajectory in await job.trajectories()], tasks=2)


async def test_a_worker_that_leaves_hands_back_what_a_full_store_does_not_take(
    job: Job, roles: Mapping[str, Role]
) -> None:
    full = JobTopology("t", job.topology.job, trajectories_max_bytes=10)
    await declare_stream(job.bus, full.trajectories, deadline_s=60.0)
    await job.issue(1)
    leaving = job.worker(Faulty(failures=0), roles, max_deliveries=1, grace_s=0.0)
    async with working(leaving) as stopping:
        await eventually(lambda: refusals(job) > 0, timeout_s=30.0)
        stopping.set()
    assert await job.tasks_left() == 1
    await declare_stream(job.bus, job.topology.trajectories, deadline_s=60.0)
    staying = job.worker(Faulty(failures=0), roles, max_deliveries=1, spare_deliveries=0)
    async with working(staying):
        await eventually(lambda: staying.completed == GROUP_SIZE, timeout_s=60.0)
    assert await job.quarantined() == {}


def refusals(job: Job) -> float:
    return job.metrics.registry.get_sample_value("trimtab_rollout_not_stored_total") or 0.0


@pytest.mark.parametrize("reward", [None, math.nan], ids=["raises", "gives NaN"])
async def test_a_workflow_that_fails_is_tried_again(job: Job, roles: Mapping[str, Role], reward: float | None) -> None:
    await job.issue(3)
    worker = job.worker(Faulty(failures=1, reward=reward), roles)
    async with working(worker):
        await eventually(lambda: worker.completed == 3 * GROUP_SIZE, timeout_s=20.0)
    trajectories = await job.trajectories()
    assert_complete_once([trajectory.trajectory_id for trajectory in trajectories], tasks=3)
    assert all(isinstance(trajectory.outcome, Scored) for trajectory in trajectories)
    assert worker.failures["workflow-error"] >= 3


@pytest.mark.parametrize("reward", [None, math.nan], ids=["raises", "gives NaN"])
async def test_given_up_it_is_published_as_a_failure_and_never_as_a_reward(
    job: Job, roles: Mapping[str, Role], reward: float | None
) -> None:
    await job.issue(2)
    workflow = Faulty(failures=10**6, reward=reward)
    worker = job.worker(workflow, roles, max_deliveries=2)

    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    assert workflow.most_attempts == 2
    trajectories = await job.trajectories()
    assert_complete_once([trajectory.trajectory_id for trajectory in trajectories], tasks=2)
    for trajectory in trajectories:
        assert isinstance(trajectory.outcome, Failed)
        assert (trajectory.outcome.error, len(trajectory.token_ids)) == ("workflow-error", 0)
    assert worker.completed == 0


async def test_a_row_that_no_message_can_carry_is_claimed_in_object_storage(
    job: Job, roles: Mapping[str, Role], object_store_settings: ObjectStoreSettings
) -> None:
    await job.issue(1, group_size=2)
    workflow = Huge(tokens=job.bus.max_payload // 3)
    settings = object_store_settings.model_copy(update={"prefix": f"t/{job.topology.job}"})
    async with ObjectStore(settings) as store:
        claims = RowClaims(store)
        worker = job.worker(workflow, roles, claims=claims)
        async with working(worker):
            await eventually(job.settled, timeout_s=30.0)
        name = job.topology.trajectories.name
        stored = (await get_messages(job.bus, name, (1, 2), deadline_s=60.0)).complete()
        for message in stored.values():
            assert len(message.payload) < 1024
            trajectory = decode(await claims.redeem(decode(message.payload, ClaimCheck)), Trajectory)
            assert trajectory.token_ids[-len(workflow.noise) :].tolist() == workflow.noise
            trajectory_id, header = parse_headers(message.headers)
            assert trajectory_id == trajectory.trajectory_id
            assert header == TrajectoryHeader.of(trajectory), (
                "the dataflow is told what it would be told without a claim"
            )
    assert worker.completed == 2
    assert await job.quarantined() == {}


@pytest.mark.slow
async def test_while_the_store_is_away_a_huge_row_is_handed_back_and_comes_later(
    job: Job, roles: Mapping[str, Role], own_seaweed: EmbeddedSeaweed
) -> None:
    """Not the task's fault, so it costs no attempt."""
    await job.issue(1, group_size=1)
    workflow = Huge(tokens=job.bus.max_payload // 3)
    own_seaweed.kill()

    def handed_back() -> bool:
        labels = {"reason": "store"}
        return bool(job.metrics.registry.get_sample_value("trimtab_rollout_hand_backs_total", labels))

    async with ObjectStore(own_seaweed.settings) as store:
        worker = job.worker(workflow, roles, max_deliveries=1, claims=RowClaims(store, deadline_s=10.0))
        async with working(worker):
            await eventually(handed_back, timeout_s=30.0)
            own_seaweed.start()
            await eventually(job.settled, timeout_s=60.0)
    assert worker.completed == 1
    assert await job.quarantined() == {}


async def test_a_huge_row_that_the_store_refuses_is_a_failure_at_once(
    job: Job, roles: Mapping[str, Role], object_store_settings: ObjectStoreSettings
) -> None:
    await job.issue(1, group_size=1)
    workflow = Huge(tokens=job.bus.max_payload // 3)
    stranger = object_store_settings.model_copy(update={"secret_access_key": SecretStr("no key of this store")})
    async with ObjectStore(stranger) as store:
        worker = job.worker(workflow, roles, max_deliveries=5, claims=RowClaims(store))
        async with working(worker):
            await eventually(job.settled, timeout_s=30.0)
    (failed,) = [trajectory.outcome for trajectory in await job.trajectories()]
    assert isinstance(failed, Failed)
    assert failed.error == "row-not-stored"


async def test_what_is_no_task_is_refused_and_does_not_stop_the_rest(job: Job, roles: Mapping[str, Role]) -> None:
    await publish(job.bus, job.topology.task_subject("rollout"), b"garbage", message_id="g", deadline_s=60.0)
    await job.issue(1)
    worker = job.worker(SingleTurn(), roles)

    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    assert worker.completed == GROUP_SIZE


async def test_a_task_that_was_given_out_too_often_is_given_up_unseen(job: Job, roles: Mapping[str, Role]) -> None:
    """It may be one that kills whoever runs it."""
    await job.issue(1)
    spec = ConsumerSpec(name=TASK_CONSUMER, stream=job.topology.tasks.name, ack_wait_s=600.0, max_ack_pending=100_000)
    await declare_consumer(job.bus, spec, deadline_s=60.0)
    async with await Puller.open(job.bus, stream=spec.stream, consumer=spec.name) as puller:
        for _ in range(2):
            (delivery,) = await puller.fetch(batch=1, wait_s=5.0)
            await delivery.nak()
    workflow = Faulty(failures=0)
    worker = job.worker(workflow, roles, max_deliveries=1, spare_deliveries=1)

    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    outcomes = [trajectory.outcome for trajectory in await job.trajectories()]
    assert {outcome.error for outcome in outcomes if isinstance(outcome, Failed)} == {"delivered-too-often"}
    assert len(outcomes) == GROUP_SIZE


async def test_draining_it_hands_back_what_it_cannot_finish_and_another_gets_it_at_once(
    job: Job, roles: Mapping[str, Role], nats_settings: NatsSettings
) -> None:
    await job.issue(5)
    held = Held()
    async with await Bus.connect(nats_settings, name="first") as first_bus:
        first = job.worker(held, roles, name="first", grace_s=0.0, max_tasks=3, bus=first_bus)
        async with working(first) as stopping:
            await eventually(lambda: held.begun == 3 * GROUP_SIZE, timeout_s=20.0)
            stopping.set()
    assert first.draining.is_set()
    assert (first.in_flight, first.completed) == (0, 0)
    second = job.worker(SingleTurn(), roles, name="second")
    async with working(second):
        await eventually(lambda: second.completed == 5 * GROUP_SIZE, timeout_s=20.0)
    assert await job.tasks_left() == 0
    assert_complete_once([trajectory.trajectory_id for trajectory in await job.trajectories()], tasks=5)


async def test_draining_it_finishes_what_it_can_and_takes_nothing_new(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(2)
    held = Held()
    worker = job.worker(held, roles, grace_s=30.0)
    async with working(worker) as stopping:
        await eventually(lambda: held.begun == 2 * GROUP_SIZE, timeout_s=20.0)
        stopping.set()
        await eventually(worker.draining.is_set, timeout_s=10.0)
        await job.issue(4)  # two of them are new
        held.open.set()
    assert worker.completed == 2 * GROUP_SIZE
    assert await job.tasks_left() == 2
    assert_complete_once([trajectory.trajectory_id for trajectory in await job.trajectories()], tasks=2)


async def test_a_worker_that_is_cancelled_hands_back_too(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(2)
    held = Held()
    run = asyncio.create_task(job.worker(held, roles).run(asyncio.Event()))
    await eventually(lambda: held.begun == 2 * GROUP_SIZE, timeout_s=20.0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    second = job.worker(SingleTurn(), roles, name="second")
    async with working(second):
        await eventually(lambda: second.completed == 2 * GROUP_SIZE, timeout_s=20.0)
