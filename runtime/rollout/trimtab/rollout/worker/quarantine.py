"""Puts tasks that are given up where people find them: under their id in the job's quarantine bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.quarantine import QuarantinedTask, stored_entry
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.task import Task
from trimtab.rollout.worker.episodes import Origin
from trimtab.rollout.worker.failures import EpisodeFailed

_log = structlog.get_logger(__name__)


class Quarantine:
    """What cannot be written is logged. The dataflow waits for the group, so its settlement goes on in any case."""

    def __init__(
        self, bucket: KeyValue, origin: Origin, *, job: str, clock: Callable[[], float], deadline_s: float = 5.0
    ) -> None:
        """A worker waits `deadline_s` before it settles a task; the entry is worth that much and no more."""
        self._bucket = bucket
        self._origin = origin
        self._job = job
        self._clock = clock
        self._deadline_s = deadline_s

    async def admit(self, task: Task, failure: EpisodeFailed, *, attempts: int) -> None:
        await self._put(
            QuarantinedTask(
                task_id=task.task_id,
                prompt_id=task.prompt_id,
                task=task,
                attempts=attempts,
                **self._circumstances(failure),
            )
        )

    async def admit_stage(self, task: StageTask, failure: EpisodeFailed, *, attempts: int) -> None:
        """A group that a stage was given up on, under its id and that of the stage."""
        await self._put(
            QuarantinedTask(
                task_id=task.task_id, prompt_id=task.prompt_id, attempts=attempts, **self._circumstances(failure)
            )
        )

    async def admit_unreadable(self, delivery: Delivery, failure: EpisodeFailed) -> None:
        """For a message that is no task, and has no id."""
        task_id = f"sequence-{delivery.sequence}"
        await self._put(QuarantinedTask(task_id=task_id, attempts=delivery.attempt, **self._circumstances(failure)))

    def _circumstances(self, failure: EpisodeFailed) -> dict[str, Any]:
        return {
            "job": self._job,
            "error": failure.kind,
            "message": failure.text,
            "where": failure.where,
            "worker": self._origin.worker,
            "pool": self._origin.pool,
            "quarantined_at": self._clock(),
        }

    async def _put(self, entry: QuarantinedTask) -> None:
        key = JobTopology.quarantine_key(entry.task_id)
        try:
            await self._bucket.put(key, stored_entry(entry), deadline_s=self._deadline_s)
        except (BusError, WireError) as error:
            _log.error("quarantine_not_written", task=entry.task_id, kind=entry.error, error=str(error))
