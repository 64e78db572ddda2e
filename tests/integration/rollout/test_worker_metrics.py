"""What a worker does with its tasks can be read from its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.polling import eventually
from tests.support.rollout.failing_workflows import Faulty, Held
from tests.support.rollout.job import GROUP_SIZE, Job, line, working
from trimtab.fabric.bus.publisher import publish
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Role


def counted(job: Job, name: str, **labels: str) -> float:
    return job.metrics.registry.get_sample_value(f"trimtab_rollout_{name}", labels) or 0.0


async def test_groups_trajectories_and_tokens_are_counted_once_stored(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(3)
    async with working(job.worker(SingleTurn(), roles)):
        await eventually(job.settled, timeout_s=20.0)
    assert counted(job, "groups_total", outcome="completed") == 3
    assert counted(job, "episodes_total", outcome="completed") == 3 * GROUP_SIZE
    assert counted(job, "trajectories_total", outcome="scored") == 3 * GROUP_SIZE
    stored = await job.trajectories()
    assert counted(job, "tokens_total", producer="model") == sum(t.trained_tokens for t in stored)
    assert counted(job, "tokens_total", producer="prompt") == sum(t.prompt_tokens for t in stored)


async def test_failures_are_counted_by_kind_with_what_was_done_about_them(job: Job, roles: Mapping[str, Role]) -> None:
    await publish(job.bus, job.topology.task_subject("rollout"), b"garbage", message_id="g", deadline_s=60.0)
    await job.issue(2)
    worker = job.worker(Faulty(failures=10**6), roles, max_deliveries=3)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    assert counted(job, "failures_total", kind="workflow-error") == worker.failures["workflow-error"] == 6
    assert counted(job, "failures_total", kind="task-unreadable") == 1
    assert counted(job, "groups_total", outcome="retried") == 4
    assert counted(job, "groups_total", outcome="quarantined") == 3
    assert counted(job, "trajectories_total", outcome="failed") == 2 * GROUP_SIZE
    assert counted(job, "trajectories_total", outcome="scored") == 0


async def test_hand_backs_are_counted_by_reason(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(1)
    held = Held()
    async with working(job.worker(held, roles, grace_s=0.0)) as stopping:
        await eventually(lambda: held.begun == GROUP_SIZE, timeout_s=20.0)
        stopping.set()
    assert counted(job, "hand_backs_total", reason="draining") == 1
    assert counted(job, "groups_total", outcome="handed_back") == 1

    await job.issue(1, task_id="needs-weights", minimum_versions={"solver": 3})
    old = {"solver": line(served=2, announced=3)}
    async with working(job.worker(SingleTurn(), roles, lines=old, lease_s=0.3)):
        await eventually(lambda: counted(job, "hand_backs_total", reason="weights") >= 1, timeout_s=20.0)
