"""A task that is given up can be found with its reason, and giving it up never depends on that."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping

import pytest
from pydantic import BaseModel

from tests.support.polling import eventually
from tests.support.rollout.failing_workflows import Allergic
from tests.support.rollout.job import GROUP_SIZE, Job, working
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_stream, delete_stream
from trimtab.fabric.logs import REDACTOR
from trimtab.fabric.settings import NatsSettings, environment_for
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Failed, Scored
from trimtab.rollout.worker.episodes import Origin
from trimtab.rollout.worker.failures import EpisodeFailed
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Role

POISON = {"prompt": "poison", "answer": "x"}
ORIGIN = Origin(worker="w0", pool="p", engine="builtin")


class _Environment(BaseModel):
    nats: NatsSettings


async def trimtab(settings: NatsSettings, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trimtab.cli.main", *arguments]
    environment = os.environ | environment_for(_Environment(nats=settings))
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.slow
async def test_a_workflow_that_always_raises_ends_in_quarantine_while_other_groups_go_on(
    job: Job, roles: Mapping[str, Role], nats_settings: NatsSettings
) -> None:
    REDACTOR.register(["hunter2-hunter2"])
    name = job.topology.job
    empty = await trimtab(nats_settings, "quarantine", name, "--namespace", "t")
    assert (empty.returncode, empty.stdout.strip()) == (0, f"{name} has nothing in quarantine"), empty.stderr

    await job.issue(1, task_id="poison", prompt_id="bad/1", prompt=POISON)
    await job.issue(4)
    workflow = Allergic(prompt="poison", error="tool [crashed] with hunter2-hunter2")
    worker = job.worker(workflow, roles, name="w7", max_deliveries=2)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    outcomes = [(t.task_id, type(t.outcome)) for t in await job.trajectories()]
    assert outcomes.count(("poison", Failed)) == GROUP_SIZE
    assert sum(kind is Scored for _, kind in outcomes) == 4 * GROUP_SIZE

    (entry,) = (await job.quarantined()).values()
    assert (entry.task_id, entry.prompt_id, entry.error, entry.attempts) == ("poison", "bad/1", "workflow-error", 2)
    assert (entry.job, entry.worker, entry.pool, entry.quarantined_at) == (name, "w7", "p", 7.0)
    assert entry.message == "RuntimeError: tool [crashed] with ***"
    assert entry.task is not None
    assert entry.task.prompt == POISON

    table = await trimtab(nats_settings, "quarantine", name, "--namespace", "t")
    assert table.returncode == 0, table.stderr
    for part in (
        "poison",
        "bad/1",
        "workflow-error",
        "w7",
        "1970-01-01 00:00:07",
        "RuntimeError: tool [crashed] with ***",
    ):
        assert part in table.stdout, part
    detail = await trimtab(nats_settings, "quarantine", name, "--namespace", "t", "--task", "poison")
    assert json.loads(detail.stdout[detail.stdout.index("{") :]) == POISON
    unknown = await trimtab(nats_settings, "quarantine", name, "--namespace", "t", "--task", "task-1")
    assert unknown.returncode == 1
    assert f"{name} has no task task-1 in quarantine" in unknown.stderr


async def test_the_entry_is_there_before_the_failures_are(job: Job, roles: Mapping[str, Role]) -> None:
    """Whoever reads a failure must find its reason."""
    seen: list[tuple[int, int, int]] = []

    class Observed(Quarantine):
        async def admit(self, task: Task, failure: EpisodeFailed, *, attempts: int) -> None:
            await super().admit(task, failure, attempts=attempts)
            seen.append((len(await job.quarantined()), len(await job.trajectories()), await job.tasks_left()))

    await job.issue(1, prompt=POISON)
    bucket = KeyValue(job.bus, job.topology.quarantine)
    quarantine = Observed(bucket, ORIGIN, job=job.topology.job, clock=lambda: 7.0)
    worker = job.worker(Allergic(prompt="poison", error="no"), roles, max_deliveries=1, quarantine=quarantine)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    assert seen == [(1, 0, 1)]


async def test_what_is_no_task_is_found_under_its_place_in_the_queue(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(1)
    await publish(job.bus, job.topology.task_subject("rollout"), b"garbage", message_id="g", deadline_s=60.0)
    worker = job.worker(SingleTurn(), roles)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    (entry,) = (await job.quarantined()).values()
    assert (entry.task_id, entry.prompt_id, entry.task) == ("sequence-2", None, None)
    assert (entry.error, entry.attempts) == ("task-unreadable", 1)
    assert "expected b'TRIM'" in entry.message
    assert worker.failures == {"task-unreadable": 1}
    assert worker.completed == GROUP_SIZE


async def test_a_task_with_settings_that_make_no_sense_is_given_up_at_once(job: Job, roles: Mapping[str, Role]) -> None:
    await job.issue(1, sampling={"temprature": 0.0})
    worker = job.worker(SingleTurn(), roles, max_deliveries=50)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    (entry,) = (await job.quarantined()).values()
    assert (entry.error, entry.attempts) == ("task-refused", 1)
    assert "temprature" in entry.message
    assert {type(t.outcome) for t in await job.trajectories()} == {Failed}


async def test_a_bucket_that_cannot_be_written_does_not_hold_up_the_group(job: Job, roles: Mapping[str, Role]) -> None:
    await delete_stream(job.bus, job.topology.quarantine.stream, deadline_s=60.0)
    await job.issue(1, prompt=POISON)
    bucket = KeyValue(job.bus, job.topology.quarantine)
    quarantine = Quarantine(bucket, ORIGIN, job=job.topology.job, clock=lambda: 7.0, deadline_s=0.3)
    worker = job.worker(Allergic(prompt="poison", error="no"), roles, max_deliveries=1, quarantine=quarantine)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    assert [type(t.outcome) for t in await job.trajectories()] == [Failed] * GROUP_SIZE


async def test_the_oldest_entries_give_way_when_the_bucket_is_full(job: Job, roles: Mapping[str, Role]) -> None:
    small = dataclasses.replace(job.topology.quarantine, max_bytes=8 << 10)
    await declare_stream(job.bus, small, deadline_s=60.0)
    for number in range(20):
        noise = random.Random(number).randbytes(1000)
        await job.issue(1, task_id=f"n{number}", prompt={"prompt": "poison", "noise": noise})
    worker = job.worker(Allergic(prompt="poison", error="no"), roles, max_deliveries=1, max_tasks=1)
    async with working(worker):
        await eventually(job.settled, timeout_s=20.0)
    kept = await job.quarantined()
    assert "n19" in kept
    assert "n0" not in kept
    assert 0 < len(kept) < 8
