"""The side between: a stage that reads the rows of each group and publishes a column of as many numbers, without a
model. What it would compute is left out; that it has to read, encode and publish is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.column import Column, ColumnHeader, column_headers, rows_digest
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.trajectory import Trajectory

STAGE = "reference"
_TASKS_AT_ONCE = 32
_WAIT_S = 10.0
_DEADLINE_S = 60.0
_LEASE_S = 60.0
_RUN = "0123456789abcdef"
_MOST_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Answer for so many groups."""

    topology: JobTopology
    groups: int


class StageSide:
    """What the process keeps between questions."""

    def __init__(self) -> None:
        self._numbers = -np.random.default_rng(5).exponential(0.3, _MOST_TOKENS).astype(np.float32)

    async def serve(self, buses: list[Bus], question: Compute) -> float:
        """Returns when the last column was stored."""
        (bus,) = buses
        spec = question.topology.stage_consumer(STAGE, lease_s=_LEASE_S)
        await declare_consumer(bus, spec, deadline_s=_DEADLINE_S)
        left = question.groups
        async with (
            await Puller.open(bus, stream=spec.stream, consumer=spec.name) as puller,
            WindowedPublisher(bus, max_messages=256, max_bytes=64 << 20, deadline_s=_DEADLINE_S) as publisher,
        ):
            while left:
                deliveries = await puller.fetch(batch=min(left, _TASKS_AT_ONCE), wait_s=_WAIT_S)
                if not deliveries:
                    raise TimeoutError(f"no task for {_WAIT_S} s, {left} groups before the end")
                tasks = [decode(delivery.payload, StageTask) for delivery in deliveries]
                rows = await self._rows(bus, question.topology, tasks)
                for task in tasks:
                    column, headers = self._answer(task, [rows[row.sequence] for row in task.rows])
                    await publisher.publish(
                        question.topology.column_subject(STAGE),
                        encode(column),
                        message_id=column.message_id,
                        headers=headers,
                    )
                await publisher.flush()
                for delivery in deliveries:
                    await delivery.ack()
                left -= len(tasks)
        return time.monotonic()

    async def _rows(self, bus: Bus, topology: JobTopology, tasks: Sequence[StageTask]) -> dict[int, Trajectory]:
        sequences = [row.sequence for task in tasks for row in task.rows]
        stored = await get_messages(bus, topology.trajectories.name, sequences, deadline_s=_DEADLINE_S)
        return {at: decode(message.payload, Trajectory) for at, message in stored.complete().items()}

    def _answer(self, task: StageTask, rows: Sequence[Trajectory]) -> tuple[Column, dict[str, str]]:
        ids = tuple(row.trajectory_id for row in rows)
        lengths = tuple(row.trained_tokens for row in rows)
        column = Column(
            job=task.job,
            stage=STAGE,
            policy=task.policy,
            group_id=task.group_id,
            run=_RUN,
            trajectory_ids=ids,
            lengths=lengths,
            values=self._numbers[: sum(lengths)],
        )
        now = time.time()
        header = ColumnHeader(
            header_version=1,
            job=task.job,
            policy=task.policy,
            stage=STAGE,
            group_id=task.group_id,
            run=_RUN,
            rows_digest=rows_digest(ids),
            rewards=None,
            turn_rewards=None,
            keep=None,
            error=None,
            message="",
            oldest_version=None,
            newest_version=None,
            worker="benchmark-pool-0",
            pool="pool",
            started_at=now,
            finished_at=now,
        )
        return column, column_headers(header)
