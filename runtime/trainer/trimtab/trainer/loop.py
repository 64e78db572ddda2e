"""The trainer's loop: rows in, an update, weights out, until the dataflow says that it is enough."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
import torch
import torch.distributed as dist

from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import StepTiming, StepTotals
from trimtab.trainer.background import Background
from trimtab.trainer.batch_stream import BatchStream, Place, Trained
from trimtab.trainer.checkpoint import CheckpointStore, snapshot
from trimtab.trainer.learner import Learner
from trimtab.trainer.outbox import Outbox
from trimtab.trainer.persistence import persistently
from trimtab.trainer.rows_ahead import RowsAhead
from trimtab.weights.baseline import Captured
from trimtab.weights.publisher import WeightPublisher

_log = structlog.get_logger(__name__)
_WRITE_DEADLINE_S = 120.0
# The first version of a large model is uploaded whole, and nobody waits for it but the pools.
_PUBLISH_DEADLINE_S = 1800.0


class TrainingLoop:
    """One rank. Rank 0 also publishes and writes checkpoints: `publisher` is None on all others."""

    def __init__(
        self,
        learner: Learner,
        stream: BatchStream,
        checkpoints: CheckpointStore,
        publisher: WeightPublisher | None,
        background: Background,
        *,
        policy: Policy,
        stopping: Callable[[], bool],
    ) -> None:
        self._learner = learner
        self._stream = stream
        self._checkpoints = checkpoints
        self._publisher = publisher
        self._background = background
        self._policy = policy
        self._stopping = stopping
        self._rows = RowsAhead(stream, background, stopping=stopping)
        self._waited_s = 0.0
        self._published = Outbox(background)
        self._saved_step = learner.step
        self._published_version: int | None = None
        self._passed_over = False
        self._lease_id = ""

    def run(self) -> None:
        try:
            self._train()
        finally:
            self._rows.close()
        self._checkpoint()
        self._published.flush()
        self._publish()
        self._published.flush()

    def _train(self) -> None:
        timing: StepTiming | None = None
        self._publish()
        while not self._any_rank_stops():
            started = time.monotonic()
            step = self._learner.step
            totals = self._gather(Trained(steps=step, previous=timing))
            if totals is None:
                break
            waited = self._waited_s
            outcome = self._learner.update(totals)
            _log.info("step", step=step, loss=outcome.loss, grad_norm=outcome.grad_norm, waited_s=round(waited, 4))
            if self._learner.step % self._policy.trainer.publish.every_steps == 0:
                self._publish()
            if self._learner.step % self._policy.trainer.checkpoint.every_steps == 0:
                self._checkpoint()
            timing = StepTiming(wait_seconds=waited, step_seconds=time.monotonic() - started)

    def _gather(self, trained: Trained) -> StepTotals | None:
        """Compute on this rank's rows as they come; the step's totals once all ranks have done so, None when any of
        them stops or fails.

        A refusal is put to the vote before it is raised: the others would wait for this rank in the next sum.
        """
        totals: StepTotals | None = None
        try:
            totals = self._accumulate(trained)
        finally:
            stop = self._any_rank_stops(totals is None)
        return None if stop else totals

    def _accumulate(self, trained: Trained) -> StepTotals | None:
        """None when there is no more to come."""
        self._waited_s = 0.0
        place = Place(step=trained.steps)
        while True:
            began = time.monotonic()
            portion = self._rows.take(place, trained=trained, idle=self._publish_passed_over)
            self._waited_s += time.monotonic() - began
            if portion is None:
                return None
            self._lease_id = portion.lease_id
            if portion.totals is None:
                place = Place(step=place.step, chunk=place.chunk + 1)
            else:
                place = Place(step=place.step + 1)
            self._rows.fetch(place, trained=trained)
            self._learner.accumulate(portion.rows)
            if portion.totals is not None:
                return portion.totals

    def _publish_passed_over(self) -> None:
        """Nothing else to do: a version that was due when another was on its way can go out now."""
        if self._passed_over:
            self._publish()

    def _publish(self) -> None:
        """While the last version is still on its way this one is passed over: pools want the newest, and soon."""
        version = self._learner.step
        if self._publisher is None or version == self._published_version:
            return
        self._passed_over = self._published.busy
        if self._passed_over:
            return
        self._published_version = version
        captured = self._publisher.capture(self._learner.weights())
        self._published.send(self._send_weights(self._publisher, version, captured))

    async def _send_weights(self, publisher: WeightPublisher, version: int, captured: Captured) -> None:
        await persistently(
            lambda: publisher.publish(version, captured, deadline_s=_PUBLISH_DEADLINE_S),
            what=f"weights of version {version}",
            deadline_s=_PUBLISH_DEADLINE_S,
        )

    def _checkpoint(self) -> None:
        """Durable before acknowledged: an acknowledged step is never asked for again."""
        step = self._learner.step
        if step == self._saved_step:
            return
        if self._publisher is not None:
            body = snapshot(self._learner)
            write = persistently(
                lambda: self._checkpoints.write(step, body), what=f"checkpoint {step}", deadline_s=_WRITE_DEADLINE_S
            )
            self._background.run(write)
            self._background.run(self._stream.acknowledge(step - 1, lease_id=self._lease_id, weight_version=step))
        self._saved_step = step

    def _any_rank_stops(self, stop: bool = False) -> bool:
        """Ranks leave together: one that went alone would leave the others hanging in the next sum."""
        stop = stop or self._stopping()
        if not dist.is_initialized():
            return stop
        flag = torch.tensor([int(stop)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
