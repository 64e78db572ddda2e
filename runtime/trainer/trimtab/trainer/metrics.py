"""What a step looked like, in sums over tokens that add up over micro-batches and ranks, and what Prometheus is told
about it: the same numbers on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from types import MappingProxyType

import torch

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.lease import StepTiming
from trimtab.trainer import ranks

_TINY = 1e-12
_MEASURES = {
    "logprob_mismatch": "Mean distance of the engine's logprobs from ours with the weights that sampled, on a few rows",
    "sampling_drift": "Divergence of the policies that sampled from the present one",
    "left_out_fraction": "Share of tokens whose importance weight is zero",
    "reference_kl": "Divergence from the reference model",
    "entropy": "Mean entropy of the distributions that tokens were chosen from",
    "value_error": "Mean squared distance of a critic's values from the returns",
    "explained_variance": "Share of the returns' variance that a critic's values explain",
    "values_staleness": "Versions of a critic since the values that its returns are made with, mean over tokens",
}


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Of some trained tokens of this rank. Tensors stay where they are: looking at one would make the GPU wait for the
    program between the passes.
    """

    loss: float | torch.Tensor = 0.0
    episodes: float | torch.Tensor = 0.0
    tokens: float | torch.Tensor = 0.0
    drift: float | torch.Tensor = 0.0
    """The divergence of the sampling policy from the present one, by the k3 estimator."""
    left_out: float | torch.Tensor = 0.0
    """Tokens whose importance weight is zero."""
    reference_kl: float | torch.Tensor = 0.0
    entropy: float | torch.Tensor = 0.0
    returns: float | torch.Tensor = 0.0
    squared_returns: float | torch.Tensor = 0.0
    value_errors: float | torch.Tensor = 0.0
    """Squared, of a critic's values."""
    versions_behind: float | torch.Tensor = 0.0
    """How much older than the critic the values are that its returns are made with."""

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def over_ranks(self) -> StepSums:
        sums = ranks.sums(*(float(value) for value in vars(self).values()))
        return StepSums(**dict(zip(vars(self), sums, strict=True)))


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """The same of all trained tokens of an update."""

    loss: float
    episodes: float
    tokens: float
    drift: float
    left_out: float
    reference_kl: float
    entropy: float
    returns: float
    squared_returns: float
    value_errors: float
    versions_behind: float

    @property
    def explained_variance(self) -> float:
        """1 where values are the returns, 0 where the mean of all returns would be as near, and below where nearer."""
        spread = self.squared_returns - self.returns**2 / max(1.0, self.tokens)
        return 1.0 - self.value_errors / max(spread, _TINY)


@dataclass(frozen=True, kw_only=True)
class StepMeasures:
    """Means over the step, as they are logged and exported."""

    tokens: int
    logprob_mismatch: float | None = None
    """The newest measurement; None until rows of a published version have come."""
    sampling_drift: float
    left_out_fraction: float
    reference_kl: float
    entropy: float | None
    value_error: float | None = None
    explained_variance: float | None = None
    values_staleness: float | None = None

    @classmethod
    def of(cls, sums: StepSums, *, with_entropy: bool, with_values: bool = False) -> StepMeasures:
        tokens = max(1.0, sums.tokens)
        return cls(
            tokens=int(sums.tokens),
            sampling_drift=sums.drift / tokens,
            left_out_fraction=sums.left_out / tokens,
            reference_kl=sums.reference_kl / tokens,
            entropy=sums.entropy / tokens if with_entropy else None,
            value_error=sums.value_errors / tokens if with_values else None,
            explained_variance=sums.explained_variance if with_values else None,
            values_staleness=sums.versions_behind / tokens if with_values else None,
        )


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a step looked like: of its last update where it made several."""

    loss: float
    grad_norm: float
    learning_rate: float
    """That of the update, as the schedule has it."""
    skipped: bool
    measures: StepMeasures


class TrainerMetrics:
    """One rank."""

    def __init__(self, metrics: Metrics) -> None:
        self._step = metrics.gauge("trainer_step", "Steps made: the version of the weights")
        self._loss = metrics.gauge("trainer_loss", "Loss of the last step")
        self._grad_norm = metrics.gauge("trainer_grad_norm", "Gradient norm of the last step, before clipping")
        self._learning_rate = metrics.gauge("trainer_learning_rate", "Learning rate of the last step")
        self._measures = {name: metrics.gauge(f"trainer_{name}", text) for name, text in _MEASURES.items()}
        self._tokens = metrics.counter("trainer_tokens", "Tokens trained on, over all ranks")
        self._skipped = metrics.counter("trainer_skipped_steps", "Steps whose loss or gradient was not finite")
        self._wait_seconds = metrics.counter("trainer_wait_seconds", "Time this rank has waited for samples")
        self._step_seconds = metrics.counter("trainer_step_seconds", "Time of all steps, waiting included")
        self.skipped_steps = 0
        """Since this rank was started."""
        self.tokens_per_second = 0.0
        """Over all ranks, in the last step."""
        self.newest: Mapping[str, float] = {}
        """What the last step looked like, for heartbeats, without what it does not have and what is no number."""

    def step_done(
        self, step: int, outcome: StepOutcome, timing: StepTiming, *, parts: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """`step` counts those made. A measure that the step does not have keeps its last value. `parts` say where the
        time of the last steps went."""
        self._step.set(step)
        self._loss.set(outcome.loss)
        self._grad_norm.set(outcome.grad_norm)
        self._learning_rate.set(outcome.learning_rate)
        measures = asdict(outcome.measures)
        for name, gauge in self._measures.items():
            if measures[name] is not None:
                gauge.set(measures[name])
        of_update = {"loss": outcome.loss, "grad_norm": outcome.grad_norm, "learning_rate": outcome.learning_rate}
        told = {**of_update, **measures, **parts}
        self.newest = {name: float(value) for name, value in told.items() if value is not None and isfinite(value)}
        self._tokens.inc(outcome.measures.tokens)
        self._skipped.inc(outcome.skipped)
        self.skipped_steps += outcome.skipped
        self.tokens_per_second = outcome.measures.tokens / timing.step_seconds if timing.step_seconds > 0 else 0.0
        self._wait_seconds.inc(timing.wait_seconds)
        self._step_seconds.inc(timing.step_seconds)
