"""What a step looked like from inside: sums over tokens that add up over micro-batches and ranks."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from trimtab.trainer import ranks


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Of some trained tokens."""

    loss: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    fresh_tokens: float = 0.0
    """Those sampled by the very weights that are trained now."""
    mismatch: float = 0.0
    """Over the fresh ones, how far the engine's logprobs are from ours, as absolute values."""
    drift: float = 0.0
    """The divergence of the sampling policy from the present one, by the k3 estimator."""
    left_out: float = 0.0
    """Tokens whose importance weight is zero."""
    reference_kl: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def over_ranks(self) -> TokenSums:
        names = list(vars(self))
        return TokenSums(**dict(zip(names, ranks.sums(*astuple(self)), strict=True)))


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
    def of(cls, sums: TokenSums, *, with_entropy: bool) -> StepMeasures:
        tokens = max(1.0, sums.tokens)
        return cls(
            tokens=int(sums.tokens),
            logprob_mismatch=sums.mismatch / sums.fresh_tokens if sums.fresh_tokens else None,
            sampling_drift=sums.drift / tokens,
            left_out_fraction=sums.left_out / tokens,
            reference_kl=sums.reference_kl / tokens,
            entropy=sums.entropy / tokens if with_entropy else None,
        )
