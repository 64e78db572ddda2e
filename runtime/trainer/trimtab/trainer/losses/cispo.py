"""CISPO: the ratio is clipped as a weight and not as an update, so every token keeps its gradient."""

from __future__ import annotations

import torch

from trimtab.trainer.losses.averaging import OVER_TOKENS
from trimtab.trainer.losses.clipping import ClipRange, bounded_ratio
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.losses.tokens import LossTokens


def cispo_tokens(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    ratio = bounded_ratio(tokens.log_ratio.detach()).clamp(1 - clip.low, 1 + clip.high)
    return -tokens.weights * ratio * tokens.advantages * tokens.logprobs


CISPO = Recipe(token_losses=cispo_tokens, averaging=OVER_TOKENS, clip=ClipRange(low=0.2, high=0.2))
