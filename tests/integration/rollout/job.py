"""One job on a real bus: tasks go in, a worker runs, and what is in the streams is read back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import parse_headers
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.rollout.episodes import GroupRunner, Origin
from trimtab.rollout.worker import Worker
from trimtab.rollout.workflows.team import Role, Workflow

GROUP_SIZE = 4
LEASE_S = 600.0
"""So long that no test passes because a lease ran out."""


class Job:
    def __init__(self, bus: Bus, topology: JobTopology) -> None:
        self.bus = bus
        self.topology = topology

    @classmethod
    async def open(cls, bus: Bus) -> Job:
        topology = JobTopology("t", f"r{uuid.uuid4().hex[:12]}")
        await declare_job(bus, topology, deadline_s=10.0)
        return cls(bus, topology)

    async def issue(self, count: int) -> None:
        for number in range(count):
            task = Task(
                task_id=f"task-{number}",
                job=self.topology.job,
                prompt_id=f"p{number}",
                prompt={"prompt": "1,2,3>", "answer": "3"},
                group_size=GROUP_SIZE,
                seed=number,
                created_at=1.0,
            )
            await publish(self.bus, self.topology.task_subject("rollout"), encode(task), message_id=task.task_id)

    async def tasks_left(self) -> int:
        info = await api_call(self.bus, f"STREAM.INFO.{self.topology.tasks.name}", deadline_s=10.0)
        return int(info["state"]["messages"])

    async def trajectories(self) -> list[Trajectory]:
        name = self.topology.trajectories.name
        info = await api_call(self.bus, f"STREAM.INFO.{name}", deadline_s=10.0)
        last = int(info["state"]["last_seq"])
        if last == 0:
            return []
        stored = (await get_messages(self.bus, name, range(1, last + 1), deadline_s=20.0)).complete()
        read = []
        for message in stored.values():
            trajectory = decode(message.payload, Trajectory)
            trajectory_id, header = parse_headers(message.headers)
            assert (trajectory_id, header.group_id) == (trajectory.trajectory_id, trajectory.group_id)
            read.append(trajectory)
        return read

    def worker(
        self,
        workflow: Workflow,
        roles: Mapping[str, Role],
        *,
        name: str = "w0",
        max_deliveries: int = 3,
        grace_s: float = 30.0,
        max_tasks: int = 4,
        bus: Bus | None = None,
    ) -> Worker:
        origin = Origin(worker=name, pool="p", engine="builtin")
        runner = GroupRunner(workflow, roles, origin, episode_timeout_s=60.0, clock=lambda: 1.0)
        return Worker(
            bus or self.bus,
            self.topology,
            runner,
            max_tasks=max_tasks,
            lease_s=LEASE_S,
            max_deliveries=max_deliveries,
            grace_s=grace_s,
        )


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Event]:
    """The worker runs inside, and is drained on the way out; set the event to drain it before."""
    stopping = asyncio.Event()
    run = asyncio.create_task(worker.run(stopping))
    try:
        yield stopping
    finally:
        stopping.set()
        await asyncio.wait_for(run, 60.0)
