"""GSPO: one ratio for the whole answer, the geometric mean of its tokens' ratios, because the reward is one too."""

from __future__ import annotations

import torch

from trimtab.trainer.losses.averaging import OVER_ANSWERS
from trimtab.trainer.losses.clipping import ClipRange, clipped
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.losses.tokens import LossTokens

_MAX_LOG_RATIO = 10.0


def gspo_tokens(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    """Every token has its answer's ratio; its gradient goes to the token's own log probability."""
    ratio = tokens.mean_log_ratios()[tokens.sequences]
    own = tokens.logprobs - tokens.logprobs.detach()
    return clipped(tokens, torch.exp((own + ratio).clamp(max=_MAX_LOG_RATIO)), clip)


GSPO = Recipe(
    token_losses=gspo_tokens,
    averaging=OVER_ANSWERS,
    clip=ClipRange(low=3e-4, high=4e-4),
    ratio_of_answers=True,
)
