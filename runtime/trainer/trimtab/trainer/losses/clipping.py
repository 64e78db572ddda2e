"""The trust region of PPO: no reward for moving a token's probability further than the clip allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trimtab.trainer.losses.tokens import LossTokens

# Beyond this a ratio means nothing any more, and its exponential would be infinite.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, kw_only=True)
class ClipRange:
    """The ratio may go from 1 - low to 1 + high. `dual` bounds the loss where the advantage is negative."""

    low: float
    high: float
    dual: float | None = None


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """The ratio with the log kept within 20: a token that has left its policy so far has no gradient."""
    return torch.exp(log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def clipped_tokens(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    """The clipped surrogate with a ratio for each token."""
    return clipped(tokens, bounded_ratio(tokens.log_ratio), clip)


def clipped(tokens: LossTokens, ratio: torch.Tensor, clip: ClipRange) -> torch.Tensor:
    """Token losses: the worse of the plain and the clipped surrogate, weighted."""
    plain = -tokens.advantages * ratio
    bounded = -tokens.advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = torch.maximum(plain, bounded)
    if clip.dual is not None:
        loss = torch.where(tokens.advantages < 0, torch.minimum(loss, -tokens.advantages * clip.dual), loss)
    return tokens.weights * loss
