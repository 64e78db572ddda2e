"""One job on a real bus: tasks go in, a worker runs, and what is in the streams is read back."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.polling import within
from tests.support.rollout.beside import beside
from tests.support.rollout.unused_claims import unused_claims
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import keys
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import parse_headers
from trimtab.fabric.wire.quarantine import QuarantinedTask
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.rollout.policy.freshness import Announcements, Freshness, VersionLine
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.worker.concurrency import Concurrency
from trimtab.rollout.worker.deliveries import HandBacks, TaskServer, WorkerTimings
from trimtab.rollout.worker.episodes import GroupRunner, Origin
from trimtab.rollout.worker.metrics import RolloutMetrics
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.worker.worker import Worker
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.team import Role, Workflow
from trimtab.weights.store.position import Position

GROUP_SIZE = 4
LEASE_S = 600.0
"""So long that no test passes because a lease ran out."""
_BACKOFF = FullJitter(base_s=0.05, cap_s=0.5)
QUICK = WorkerTimings(pull_wait_s=0.2, retry_delay_s=0.05, pull_backoff=_BACKOFF, publish_backoff=_BACKOFF)


class Job:
    def __init__(self, bus: Bus, topology: JobTopology) -> None:
        self.bus = bus
        self.topology = topology
        self.metrics = Metrics()
        """Of its latest worker."""

    @classmethod
    async def open(cls, bus: Bus) -> Job:
        topology = JobTopology("t", f"r{uuid.uuid4().hex[:12]}")
        await declare_job(bus, topology, deadline_s=60.0)
        return cls(bus, topology)

    async def issue(self, count: int, **changes: Any) -> None:
        for number in range(count):
            fields: dict[str, Any] = {
                "task_id": f"task-{number}",
                "job": self.topology.job,
                "prompt_id": f"p{number}",
                "prompt": {"prompt": "1,2,3>", "answer": "3"},
                "group_size": GROUP_SIZE,
                "seed": number,
                "created_at": 1.0,
            }
            task = Task(**fields | changes)
            await publish(
                self.bus,
                self.topology.task_subject("rollout"),
                encode(task),
                message_id=task.task_id,
                deadline_s=60.0,
            )

    async def tasks_left(self) -> int:
        info = await api_call(self.bus, f"STREAM.INFO.{self.topology.tasks.name}", deadline_s=60.0)
        return int(info["state"]["messages"])

    async def settled(self) -> bool:
        return await self.tasks_left() == 0

    async def deliveries(self) -> tuple[int, int]:
        """How many there were so far, and how many of them are not settled."""
        try:
            info = await api_call(
                self.bus, f"CONSUMER.INFO.{self.topology.tasks.name}.{TASK_CONSUMER}", deadline_s=60.0
            )
        except BusNotFound:
            return 0, 0
        return int(info["delivered"]["consumer_seq"]), int(info["num_ack_pending"])

    async def quarantined(self) -> dict[str, QuarantinedTask]:
        """By task id."""
        bucket = KeyValue(self.bus, self.topology.quarantine)
        found = {}
        for key in await keys(bucket, deadline_s=60.0):
            entry = decode((await bucket.get(key)).value, QuarantinedTask)
            assert key == self.topology.quarantine_key(entry.task_id)
            found[entry.task_id] = entry
        return found

    async def trajectories(self) -> list[Trajectory]:
        name = self.topology.trajectories.name
        info = await api_call(self.bus, f"STREAM.INFO.{name}", deadline_s=60.0)
        last = int(info["state"]["last_seq"])
        if last == 0:
            return []
        stored = (await get_messages(self.bus, name, range(1, last + 1), deadline_s=60.0)).complete()
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
        concurrency: Concurrency | None = None,
        lines: Mapping[str, VersionLine] | None = None,
        max_staleness: int = 2,
        freshness: Freshness | None = None,
        quarantine: Quarantine | None = None,
        lease_s: float = LEASE_S,
        spare_deliveries: int = 20,
        hand_back_deadline_s: float = 60.0,
        timings: WorkerTimings = QUICK,
        bus: Bus | None = None,
        claims: RowClaims | None = None,
    ) -> Worker:
        """With a short `lease_s` it does not wait long for weights; what it has is its own for as long as ever. A
        `freshness` stands for `lines` and `max_staleness`.
        """
        used = bus or self.bus
        origin = Origin(worker=name, pool="p", engine="builtin")
        fresh = freshness or Freshness(lines or {}, max_staleness=max_staleness)
        bucket = KeyValue(used, self.topology.quarantine)
        self.metrics = Metrics()
        metrics = RolloutMetrics(self.metrics)
        server = TaskServer(
            used,
            self.topology,
            GroupRunner(workflow, roles, origin, Containment(), metrics, episode_timeout_s=600.0, clock=lambda: 1.0),
            quarantine or Quarantine(bucket, origin, job=self.topology.job, clock=lambda: 7.0),
            HandBacks(KeyValue(used, self.topology.hand_backs), deadline_s=hand_back_deadline_s),
            fresh,
            metrics,
            claims or unused_claims(),
            lease_s=lease_s,
            max_deliveries=max_deliveries,
            spare_deliveries=spare_deliveries,
            clock=time.monotonic,
            timings=timings,
        )
        return Worker(
            used,
            self.topology,
            server,
            fresh,
            concurrency or Concurrency(ceiling=max_tasks, requests_per_task=GROUP_SIZE),
            lease_s=LEASE_S,
            grace_s=grace_s,
            clock=time.monotonic,
            timings=timings,
        )


def at(version: int) -> Position:
    return Position(epoch=1, version=version)


@dataclass(frozen=True, kw_only=True)
class GatedLine(VersionLine):
    """That of one engine, whose gate tests move."""

    served: VersionGate


def line(*, served: int, announced: int) -> GatedLine:
    """A policy whose engine serves one version while its trainer has announced another."""
    announcements = Announcements(clock=time.monotonic)
    announcements.note(announced)
    return GatedLine(served=VersionGate(at(served)), announcements=announcements)


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Event]:
    """The worker runs inside, and is drained on the way out; set the event to drain it before."""
    stopping = asyncio.Event()
    async with beside(worker.run(stopping)) as run:
        try:
            yield stopping
        finally:
            stopping.set()
            await within(run, 60.0)


def first_runs(stored: Sequence[Trajectory]) -> list[Trajectory]:
    """Of trajectories in the order of the stream, those that are the episodes: a task that is given out again when some
    of it was stored brings other rows, which come too late. For workflows with one row a role.
    """
    first: dict[tuple[str, int], Trajectory] = {}
    for one in stored:
        first.setdefault((one.group_id, one.group_index), one)
    return list(first.values())


def assert_complete_once(ids: list[str], *, tasks: int) -> None:
    wanted = {f"task-{number}.solver.{index}.0" for number in range(tasks) for index in range(GROUP_SIZE)}
    assert Counter(ids) == Counter(wanted)
