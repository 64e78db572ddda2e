"""What a step looked like from inside: sums over tokens that add up over micro-batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trimtab.trainer import ranks


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Of some trained tokens of this rank. Tensors stay where they are: looking at one would make the GPU wait for the
    program between the passes.
    """

    loss: float | torch.Tensor = 0.0
    samples: float | torch.Tensor = 0.0
    tokens: float | torch.Tensor = 0.0
    fresh_tokens: float | torch.Tensor = 0.0
    """Those sampled by the very weights that are trained now."""
    mismatch: float | torch.Tensor = 0.0
    """Over the fresh ones, how far the engine's logprobs are from ours, as absolute values."""
    drift: float | torch.Tensor = 0.0
    """The divergence of the sampling policy from the present one, by the k3 estimator."""
    left_out: float | torch.Tensor = 0.0
    """Tokens whose importance weight is zero."""
    reference_kl: float | torch.Tensor = 0.0
    entropy: float | torch.Tensor = 0.0

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def over_ranks(self) -> StepSums:
        sums = ranks.sums(*(float(value) for value in vars(self).values()))
        return StepSums(**dict(zip(vars(self), sums, strict=True)))


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """The same of all trained tokens of an update."""

    loss: float
    samples: float
    tokens: float
    fresh_tokens: float
    mismatch: float
    drift: float
    left_out: float
    reference_kl: float
    entropy: float


@dataclass(frozen=True, kw_only=True)
class StepMeasures:
    """Means over the step, as they are logged and exported."""

    tokens: int
    logprob_mismatch: float | None
    """None when no token was sampled by the present weights."""
    sampling_drift: float
    left_out_fraction: float
    reference_kl: float
    entropy: float | None

    @classmethod
    def of(cls, sums: StepSums, *, with_entropy: bool) -> StepMeasures:
        tokens = max(1.0, sums.tokens)
        return cls(
            tokens=int(sums.tokens),
            logprob_mismatch=sums.mismatch / sums.fresh_tokens if sums.fresh_tokens else None,
            sampling_drift=sums.drift / tokens,
            left_out_fraction=sums.left_out / tokens,
            reference_kl=sums.reference_kl / tokens,
            entropy=sums.entropy / tokens if with_entropy else None,
        )
