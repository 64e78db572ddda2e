"""Stores what a stage has computed about a group as one message: a column, or the error that it was given up with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.names import Headers, encoded_size
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.column import Column, ColumnHeader, column_headers, rows_digest
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.stage import StageTask
from trimtab.rollout.stages.computed import Computed, Numbers
from trimtab.rollout.stages.metrics import StageWorkMetrics
from trimtab.rollout.worker.episodes import Origin
from trimtab.rollout.worker.failures import EpisodeFailed
from trimtab.rollout.worker.full_store import when_there_is_room


class ColumnStore:
    """One message for all rows of a group. One too large for the bus is put into object storage, and its claim goes."""

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        claims: RowClaims,
        metrics: StageWorkMetrics,
        origin: Origin,
        *,
        clock: Callable[[], float],
        new_run: Callable[[], str],
        deadline_s: float,
        backoff: FullJitter,
    ) -> None:
        """`deadline_s` is that of one attempt, `backoff` between attempts at what a full store does not take. `new_run`
        names an execution of a task: another one, by whatever worker, has another name."""
        self._bus = bus
        self._topology = topology
        self._claims = claims
        self._metrics = metrics
        self._origin = origin
        self._clock = clock
        self._new_run = new_run
        self._deadline_s = deadline_s
        self._backoff = backoff

    async def put(self, task: StageTask, computed: Computed, *, started_at: float) -> None:
        """Raises WireError for what no reader would take."""
        column = self._column(task, computed.numbers)
        await self._publish(column, self._header(task, column.run, computed, None, started_at=started_at))

    async def put_failure(self, task: StageTask, failure: EpisodeFailed) -> None:
        nothing = tuple(np.zeros(0, dtype=np.float32) for _ in task.rows)
        column = self._column(task, nothing)
        await self._publish(column, self._header(task, column.run, None, failure, started_at=self._clock()))

    def _column(self, task: StageTask, numbers: tuple[Numbers, ...]) -> Column:
        return Column(
            job=task.job,
            stage=task.stage,
            policy=task.policy,
            group_id=task.group_id,
            run=self._new_run(),
            trajectory_ids=tuple(row.trajectory_id for row in task.rows),
            lengths=tuple(map(len, numbers)),
            values=np.concatenate(numbers).astype(np.float32, copy=False),
        )

    def _header(
        self,
        task: StageTask,
        run: str,
        computed: Computed | None,
        failure: EpisodeFailed | None,
        *,
        started_at: float,
    ) -> ColumnHeader:
        versions = None if computed is None else computed.versions
        return ColumnHeader(
            header_version=1,
            job=task.job,
            policy=task.policy,
            stage=task.stage,
            group_id=task.group_id,
            run=run,
            rows_digest=rows_digest(row.trajectory_id for row in task.rows),
            rewards=None if computed is None else computed.rewards,
            turn_rewards=None if computed is None else computed.turn_rewards,
            keep=None if computed is None else computed.keep,
            error=None if failure is None else failure.kind,
            message="" if failure is None else failure.text,
            oldest_version=None if versions is None else versions[0],
            newest_version=None if versions is None else versions[1],
            worker=self._origin.worker,
            pool=self._origin.pool,
            started_at=started_at,
            finished_at=self._clock(),
        )

    async def _publish(self, column: Column, header: ColumnHeader) -> None:
        headers = column_headers(header)
        frame = encode(column)
        if len(frame) + encoded_size(headers) > self._bus.max_payload:
            frame = encode(await self._claims.deposit_column(column, frame))
            self._metrics.deposited()
        await when_there_is_room(lambda: self._publish_once(column, frame, headers), backoff=self._backoff)

    async def _publish_once(self, column: Column, frame: bytes, headers: Headers) -> None:
        await publish(
            self._bus,
            self._topology.column_subject(column.stage),
            frame,
            message_id=column.message_id,
            headers=headers,
            deadline_s=self._deadline_s,
        )
