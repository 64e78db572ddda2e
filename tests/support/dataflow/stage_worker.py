"""A stage worker without models: what it computes of a row follows from the row's id alone, so that whoever reads it
can tell whether it was joined to the right one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.api.stage import Stage
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.errors import BusError, BusTimeout
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.column import Column, ColumnHeader, column_headers, rows_digest
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.trajectory import Trajectory

LEASE_S = 4.0
_DEADLINE_S = 60.0


class WrongTask(RuntimeError):
    """A stage is asked about other rows than lie under the numbers it was given."""


def numbers(stage: str, trajectory_id: str, count: int) -> npt.NDArray[np.float32]:
    """Of so many tokens: no two rows have the same, and float32 holds them exactly."""
    base = zlib.crc32(f"{stage}/{trajectory_id}".encode()) % 8000 / 8
    return (base + np.arange(count) / 1024).astype(np.float32)


def reward(stage: str, trajectory_id: str) -> float:
    return float(numbers(stage, trajectory_id, 1)[0])


def keeps(stage: str, trajectory_id: str) -> bool:
    return zlib.crc32(f"{stage}?{trajectory_id}".encode()) % 4 != 0


def gives_up(stage: str, group_id: str) -> bool:
    """Of all attempts at a group, whoever makes them."""
    return zlib.crc32(f"{stage}!{group_id}".encode()) % 16 == 0


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often, of a hundred tasks."""

    dies_before: float = 0.0
    """The worker hands its task back, as one that died would leave it."""
    dies_after: float = 0.0
    """It does so when its column is stored."""
    repeats: float = 0.0
    """It stores a second column of another run, with other numbers."""
    lies: float = 0.0
    """It stores a column of other rows first."""
    fails_groups: bool = False
    """Whether groups that the stage gives up on are told so."""


class StageWorker:
    """Serves one stage until it is cancelled."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        stage: Stage,
        *,
        chance: random.Random,
        faults: Faults = Faults(),
        dies: Callable[[Delivery], Awaitable[object]] = Delivery.nak,
        on_stored: Callable[[str, str, int], None] = lambda group_id, run, sequence: None,
    ) -> None:
        """`dies` is told of the task that it had: by default it leaves it as a worker that died would."""
        self._bus = bus
        self._topology = topology
        self._stage = stage
        self._chance = chance
        self._faults = faults
        self._dies = dies
        self._on_stored = on_stored

    async def run(self) -> None:
        await declare_job(self._bus, self._topology, deadline_s=_DEADLINE_S)
        spec = self._topology.stage_consumer(self._stage.name, lease_s=LEASE_S)
        await declare_consumer(self._bus, spec, deadline_s=_DEADLINE_S)
        async with await Puller.open(self._bus, stream=spec.stream, consumer=spec.name) as puller:
            while True:
                with contextlib.suppress(BusTimeout):
                    for delivery in await puller.fetch(batch=8, wait_s=0.5):
                        with contextlib.suppress(BusError):
                            await self._serve(delivery)

    async def _serve(self, delivery: Delivery) -> None:
        task = decode(delivery.payload, StageTask)
        if self._happens(self._faults.dies_before):
            await self._dies(delivery)
            return
        rows = await self._rows(task)
        await self._check_columns(task)
        if self._happens(self._faults.lies):
            await self._store(task, rows[::-1], shift=1.0, lies=True)
        await self._store(task, rows)
        if self._happens(self._faults.repeats):
            await self._store(task, rows, shift=0.5)
        if self._happens(self._faults.dies_after):
            await self._dies(delivery)
            return
        await delivery.ack_confirmed(deadline_s=_DEADLINE_S)

    def _happens(self, percent: float) -> bool:
        return self._chance.random() * 100 < percent

    async def _rows(self, task: StageTask) -> list[Trajectory]:
        sequences = [row.sequence for row in task.rows]
        stored = (
            await get_messages(self._bus, self._topology.trajectories.name, sequences, deadline_s=_DEADLINE_S)
        ).complete()
        found = [decode(stored[row.sequence].payload, Trajectory) for row in task.rows]
        for row, trajectory in zip(task.rows, found, strict=True):
            if trajectory.trajectory_id != row.trajectory_id:
                raise WrongTask(f"{row.sequence} has {trajectory.trajectory_id}, asked was {row.trajectory_id}")
        return found

    async def _check_columns(self, task: StageTask) -> None:
        """What it needs is there, and of this group. A stage that gets no rows of the policy has no column of them."""
        if not {column.stage for column in task.columns} <= set(self._stage.needs):
            raise WrongTask(f"{task.task_id} has columns of {[column.stage for column in task.columns]}")
        sequences = [column.sequence for column in task.columns]
        stored = (
            await get_messages(self._bus, self._topology.columns.name, sequences, deadline_s=_DEADLINE_S)
        ).complete()
        for reference in task.columns:
            column = decode(stored[reference.sequence].payload, Column)
            if (column.stage, column.group_id) != (reference.stage, task.group_id):
                raise WrongTask(f"{task.task_id} was given {column.message_id}")

    async def _store(
        self, task: StageTask, rows: Sequence[Trajectory], *, shift: float = 0.0, lies: bool = False
    ) -> None:
        stage = self._stage.name
        run = uuid.uuid4().hex[:12]
        ids = tuple(row.trajectory_id for row in rows)
        by_token = self._stage.computes in ("Logprobs", "Values", "Custom")
        lengths = tuple(row.trained_tokens if by_token else 1 for row in rows)
        values = [numbers(stage, row, count) + np.float32(shift) for row, count in zip(ids, lengths, strict=True)]
        column = Column(
            job=task.job,
            stage=stage,
            policy=task.policy,
            group_id=task.group_id,
            run=run,
            trajectory_ids=ids,
            lengths=lengths,
            values=np.concatenate(values),
        )
        failed = self._faults.fails_groups and gives_up(stage, task.group_id)
        header = ColumnHeader(
            header_version=1,
            job=task.job,
            policy=task.policy,
            stage=stage,
            group_id=task.group_id,
            run=run,
            rows_digest=rows_digest([*ids, "another"] if lies and len(ids) < 2 else ids),
            rewards=tuple(reward(stage, row) + shift for row in ids) if self._says("Reward", failed) else None,
            turn_rewards=None,
            keep=tuple(keeps(stage, row) for row in ids) if self._says("Filter", failed) else None,
            error="stage.gave-up" if failed else None,
            message="",
            oldest_version=None,
            newest_version=None,
            worker="stage-worker",
            pool="local",
            started_at=time.time(),
            finished_at=time.time(),
        )
        stored = await publish(
            self._bus,
            self._topology.column_subject(stage),
            encode(column),
            message_id=column.message_id,
            headers=column_headers(header),
            deadline_s=_DEADLINE_S,
        )
        self._on_stored(task.group_id, run, stored.sequence)

    def _says(self, computes: str, failed: bool) -> bool:
        return self._stage.computes == computes and not failed


async def serve_stages(
    bus: Bus, topology: JobTopology, stages: Sequence[Stage], *, chance: random.Random, faults: Faults | None = None
) -> None:
    """All of them, until cancelled."""
    async with asyncio.TaskGroup() as workers:
        for stage in stages:
            worker = StageWorker(bus, topology, stage, chance=chance, faults=faults or Faults())
            workers.create_task(worker.run())
