"""What a trainer rank tells Prometheus about its steps: the same numbers on every rank, as they are over all."""

from __future__ import annotations

from dataclasses import asdict

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.lease import StepTiming
from trimtab.trainer.learner import StepOutcome

_MEASURES = {
    "logprob_mismatch": "Mean distance of the engine's logprobs from ours, over tokens sampled by the trained weights",
    "sampling_drift": "Divergence of the policies that sampled from the present one",
    "left_out_fraction": "Share of tokens whose importance weight is zero",
    "reference_kl": "Divergence from the reference model",
    "entropy": "Mean entropy of the distributions that tokens were chosen from",
}


class TrainerMetrics:
    """One rank."""

    def __init__(self, metrics: Metrics) -> None:
        self._step = metrics.gauge("trainer_step", "Steps made: the version of the weights")
        self._loss = metrics.gauge("trainer_loss", "Loss of the last step")
        self._grad_norm = metrics.gauge("trainer_grad_norm", "Gradient norm of the last step, before clipping")
        self._measures = {name: metrics.gauge(f"trainer_{name}", text) for name, text in _MEASURES.items()}
        self._tokens = metrics.counter("trainer_tokens", "Tokens trained on, over all ranks")
        self._skipped = metrics.counter("trainer_skipped_steps", "Steps whose loss or gradient was not finite")
        self._wait_seconds = metrics.counter("trainer_wait_seconds", "Time this rank has waited for samples")
        self._step_seconds = metrics.counter("trainer_step_seconds", "Time of all steps, waiting included")
        self.skipped_steps = 0
        """Since this rank was started."""
        self.tokens_per_second = 0.0
        """Over all ranks, in the last step."""

    def step_done(self, step: int, outcome: StepOutcome, timing: StepTiming) -> None:
        """`step` counts those made. A measure that the step does not have keeps its last value."""
        self._step.set(step)
        self._loss.set(outcome.loss)
        self._grad_norm.set(outcome.grad_norm)
        measures = asdict(outcome.measures)
        for name, gauge in self._measures.items():
            if measures[name] is not None:
                gauge.set(measures[name])
        self._tokens.inc(outcome.measures.tokens)
        self._skipped.inc(outcome.skipped)
        self.skipped_steps += outcome.skipped
        self.tokens_per_second = outcome.measures.tokens / timing.step_seconds if timing.step_seconds > 0 else 0.0
        self._wait_seconds.inc(timing.wait_seconds)
        self._step_seconds.inc(timing.step_seconds)
