"""The trainer's loop: rows in, an update, weights out, until the dataflow says that it is enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

import structlog

from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import LeaseRefused, Refusal, StepTiming, StepTotals
from trimtab.trainer import ranks
from trimtab.trainer.background import Background
from trimtab.trainer.batch import StepPortion
from trimtab.trainer.batch_stream import BatchStream, PortionId, RowsAhead, StepRefused, Trained
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.learner import Learner
from trimtab.trainer.metrics import TrainerMetrics
from trimtab.trainer.publisher import WeightOutbox
from trimtab.trainer.step_clock import PREFIX, StepClock
from trimtab.weights.publisher import WeightPublisher

_log = structlog.get_logger(__name__)


class TrainingLoop:
    """One rank. Without a publisher nothing is published, by none of the ranks."""

    def __init__(
        self,
        learner: Learner,
        stream: BatchStream,
        saver: CheckpointSaver,
        publisher: WeightPublisher | None,
        background: Background,
        metrics: TrainerMetrics,
        *,
        policy: Policy,
        max_staleness: int,
        stopping: Callable[[], bool],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`moved` is told whenever this rank has done something, or waits for rows and could stop."""
        self._learner = learner
        self._stream = stream
        self._saver = saver
        self._metrics = metrics
        self._policy = policy
        self._max_staleness = max_staleness
        self._stopping = stopping
        self._moved = moved
        self._rows = RowsAhead(stream, background, stopping=stopping)
        self._waited_s = 0.0
        self._evaluated_s = 0.0
        self._weights = None if publisher is None else WeightOutbox(publisher, background)
        if self._weights is not None:
            learner.before_change = self._weights.wait_until_read
        self._saved_step = learner.step
        self._checkpoint_due = False
        self._published_version: int | None = None
        self._passed_over = False
        self._lease_id = ""
        self._refusal: StepRefused | None = None
        self._clock = StepClock()

    def run(self) -> None:
        try:
            self._train()
        finally:
            self._rows.close()
        self._flush_weights()
        self._publish()
        self._last_checkpoint()
        self._flush_weights()
        if self._refusal is not None:
            raise self._refusal

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
            started += self._evaluated_s
            with self._clock.part("update"):
                outcome = self._learner.update(totals)
            self._moved()
            _log.info(
                "step",
                step=step,
                loss=outcome.loss,
                grad_norm=outcome.grad_norm,
                waited_s=round(waited, 4),
                **asdict(outcome.measures),
            )
            if self._learner.step % self._policy.trainer.publish.every_steps == 0:
                with self._clock.part("publish"):
                    self._publish()
            with self._clock.part("checkpoint"):
                self._checkpoint_when_due()
            timing = StepTiming(wait_seconds=waited, step_seconds=time.monotonic() - started)
            self._clock.add("wait", waited)
            self._clock.step_over(seconds=timing.step_seconds)
            self._metrics.step_done(self._learner.step, outcome, timing, parts=self._parts())

    def _parts(self) -> dict[str, float]:
        """Of the last steps; the upload of weights is beside them."""
        upload_s = None if self._weights is None else self._weights.last_publish_s
        return self._clock.means | ({} if upload_s is None else {f"{PREFIX}upload": upload_s})

    def _gather(self, trained: Trained) -> StepTotals | None:
        """Compute on this rank's rows as they come; the step's totals with the last, None when any rank stops."""
        self._waited_s = self._evaluated_s = 0.0
        portion_id = PortionId(step=trained.steps)
        while True:
            portion = self._take(portion_id, trained)
            if portion is None:
                return None
            self._lease_id = portion.lease_id
            if portion.totals is None:
                portion_id = PortionId(step=portion_id.step, chunk=portion_id.chunk + 1)
            else:
                portion_id = PortionId(step=portion_id.step + 1)
            self._rows.fetch(portion_id, trained=trained)
            self._moved()
            with self._clock.part("compute"):
                self._learner.accumulate(portion.rows)
            self._moved()
            if portion.totals is not None:
                return portion.totals

    def _take(self, portion_id: PortionId, trained: Trained) -> StepPortion | None:
        """The rows, when every rank has its own: computing on them takes all ranks. The time of a round of evaluation
        that came before is no part of the step: no rollouts were missing, and none would have made it shorter.

        A refusal is put to the vote and kept for later: this rank is still needed for the last checkpoint.
        """
        portion: StepPortion | None = None
        began = time.monotonic()
        try:
            portion = self._rows.take(portion_id, trained=trained, idle=self._while_idle)
        except StepRefused as refusal:
            self._refusal = refusal
        waited = time.monotonic() - began
        evaluated = 0.0 if portion is None else min(waited, portion.evaluated_s)
        self._waited_s += waited - evaluated
        self._evaluated_s += evaluated
        dealt = -1 if portion is None else portion.dealt
        stops, most, least = ranks.maxima(portion is None or self._stopping(), dealt, -dealt)
        if stops:
            return None
        if most != -least:
            message = f"ranks were dealt different groups for step {portion_id.step}: a ledger has lost its end"
            self._refusal = StepRefused(LeaseRefused(refusal=Refusal.UNKNOWN_LEASE, message=message))
            return None
        return portion

    def _while_idle(self) -> None:
        self._moved()
        self._saver.raise_failure()
        self._publish_passed_over()

    def _publish_passed_over(self) -> None:
        """Nothing else to do: a version that was due when another was on its way can go out now. Unless it takes other
        ranks, which may not be waiting.
        """
        if self._passed_over and ranks.world_size() == 1:
            self._publish()

    def _publish(self) -> None:
        """While the last version is still on its way this one is passed over: pools want the newest, and soon. Unless
        that one would be too old for the samples of the next step: then those would wait for a version that is not
        published, because we wait for them.
        """
        version = self._learner.step
        if version == self._published_version:
            return
        (busy,) = ranks.maxima(self._weights is not None and self._weights.busy)
        lag = version - (self._published_version or 0)
        self._passed_over = bool(busy) and lag <= self._max_staleness
        if self._passed_over:
            return
        self._flush_weights()
        self._published_version = version
        weights = self._learner.weights()
        if self._weights is not None:
            self._weights.send(version, weights)

    def _flush_weights(self) -> None:
        if self._weights is not None:
            self._weights.flush()

    def _checkpoint_when_due(self) -> None:
        """While one is under way the next is put off until the first step after it: training never waits for storage,
        and memory holds one copy of the state and not two.
        """
        self._saver.prepare()
        busy = self._saver.busy
        if self._learner.step % self._policy.trainer.checkpoint.every_steps == 0:
            self._checkpoint_due = True
        if self._checkpoint_due:
            (anyone,) = ranks.maxima(busy)
            if not anyone:
                self._checkpoint()

    def _last_checkpoint(self) -> None:
        """Whoever is told to stop gives up nothing that was trained. A policy that is finished has its last weights
        published; another checkpoint is written only if going on from the newest would repeat more than a crash may.
        """
        self._saver.flush()
        (interrupted,) = ranks.maxima(self._stopping() or self._refusal is not None)
        (durable,) = ranks.maxima(self._saver.durable_step or 0)
        recent = durable > 0 and self._learner.step - durable < self._policy.trainer.checkpoint.every_steps
        if self._learner.step != self._saved_step and (interrupted or not recent):
            self._checkpoint()
            self._saver.flush()
        elif self._learner.step != durable:
            _log.info("finished_beside_checkpoint", step=self._learner.step, checkpoint=int(durable))

    def _checkpoint(self) -> None:
        self._checkpoint_due = False
        self._saved_step = self._learner.step
        self._saver.begin(lease_id=self._lease_id)

    def _any_rank_stops(self, stop: bool = False) -> bool:
        """Ranks leave together: one that went alone would leave the others hanging in the next sum."""
        (anyone,) = ranks.maxima(stop or self._stopping())
        return bool(anyone)
