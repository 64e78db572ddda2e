"""Makes checkpoints beside training: the step loop waits for a copy to main memory, and for nothing else."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.trainer import ranks
from trimtab.trainer.background import Background, Outbox, persistently
from trimtab.trainer.checkpoints.index import CheckpointFile, CheckpointIndex
from trimtab.trainer.checkpoints.staging import StagedFile, Staging
from trimtab.trainer.checkpoints.state import optimizer_steps_of, tensors_of
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner
from trimtab.trainer.rank_exchange import RankExchange

_log = structlog.get_logger(__name__)
_WRITE_DEADLINE_S = 600.0


class WrittenPart(msgspec.Struct, frozen=True, tag=True):
    """This rank's file is there."""

    file: CheckpointFile


class FailedPart(msgspec.Struct, frozen=True, tag=True):
    """It could not be written."""

    rank: int
    reason: str


Part = WrittenPart | FailedPart


class CheckpointFailed(RuntimeError):
    """A rank could not write its file; the checkpoint before stays in force."""


class Acknowledge(Protocol):
    """Tells the dataflow that a step is durable."""

    async def __call__(self, step: int, *, lease_id: str, weight_version: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Moment:
    """When the state was copied."""

    step: int
    lease_id: str
    optimizer_steps: dict[str, int]


class CheckpointSaver:
    """One rank's. All ranks make the same calls in the same order; one checkpoint is under way at a time."""

    def __init__(
        self,
        learner: Learner,
        checkpoints: CheckpointStore,
        background: Background,
        *,
        rank: int,
        acknowledge: Acknowledge,
    ) -> None:
        self._learner = learner
        self._checkpoints = checkpoints
        self._rank = rank
        self._acknowledge = acknowledge
        self._background = background
        self._staging = Staging()
        self._reserving: Future[None] | None = None
        self._exchange = RankExchange()
        self._outbox = Outbox(background)
        self.durable_step: int | None = learner.step if rank == 0 and learner.step else None
        """Of the newest checkpoint; known on rank 0, which commits them."""

    @property
    def busy(self) -> bool:
        """Whether this rank still writes. Raises what failed."""
        return self._outbox.busy

    def raise_failure(self) -> None:
        """What has failed is raised in the step loop, soon, and not left to the next checkpoint."""
        self._outbox.raise_failure()

    def flush(self) -> None:
        """Wait until what is under way is durable and acknowledged."""
        self._outbox.flush()

    def prepare(self) -> None:
        """Take the memory for copies, beside the next step. Once, when the optimiser has its moments."""
        if self._reserving is None:
            tensors = tensors_of(self._learner, rank=self._rank)
            self._reserving = self._background.start(asyncio.to_thread(self._staging.reserve, tensors))

    def begin(self, *, lease_id: str) -> None:
        """Copy the state as it is. Only when it is not busy."""
        learner = self._learner
        moment = _Moment(step=learner.step, lease_id=lease_id, optimizer_steps=optimizer_steps_of(learner))
        if self._reserving is not None:
            self._reserving.result()
        staged = self._staging.copy(tensors_of(learner, rank=self._rank))
        self._outbox.send(self._save(moment, staged))

    async def _save(self, moment: _Moment, staged: StagedFile) -> None:
        """Durable before acknowledged: an acknowledged step is never asked for again."""
        files = await self._agreed(moment, staged)
        if self._rank != 0:
            return
        index = CheckpointIndex(
            epoch=self._checkpoints.epoch,
            step=moment.step,
            lease_id=moment.lease_id,
            world_size=ranks.world_size(),
            optimizer_steps=moment.optimizer_steps,
            files=files,
        )
        await persistently(
            lambda: self._checkpoints.commit(index), what=f"checkpoint {moment.step}", deadline_s=_WRITE_DEADLINE_S
        )
        self.durable_step = moment.step
        _log.info("checkpoint", step=moment.step, bytes=sum(file.size for file in files))
        if moment.step > 0:
            await self._acknowledge(moment.step - 1, lease_id=moment.lease_id, weight_version=moment.step)

    async def _agreed(self, moment: _Moment, staged: StagedFile) -> tuple[CheckpointFile, ...]:
        """The files of all ranks. A rank that has failed says so, or the others would wait for it."""
        failure: ObjectStoreError | OSError | None = None
        try:
            part: Part = WrittenPart(file=await self._put(moment, staged))
        except (ObjectStoreError, OSError) as error:
            failure = error
            part = FailedPart(rank=self._rank, reason=str(error))
        told = await self._exchange.gather(msgspec.json.encode(part))
        parts = [msgspec.json.decode(word, type=Part) for word in told]
        if failure is not None:
            raise CheckpointFailed(f"checkpoint {moment.step} could not be written: {failure}") from failure
        for other in parts:
            if isinstance(other, FailedPart):
                raise CheckpointFailed(f"rank {other.rank} could not write checkpoint {moment.step}: {other.reason}")
        return tuple(other.file for other in parts if isinstance(other, WrittenPart))

    async def _put(self, moment: _Moment, staged: StagedFile) -> CheckpointFile:
        return await persistently(
            lambda: self._checkpoints.put(staged, step=moment.step),
            what=f"file of checkpoint {moment.step}",
            deadline_s=_WRITE_DEADLINE_S,
        )
