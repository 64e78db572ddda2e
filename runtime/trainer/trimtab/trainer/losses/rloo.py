"""REINFORCE on whole answers, each compared with the mean of the others of its prompt."""

from __future__ import annotations

import torch

from trimtab.trainer.losses.averaging import ANSWER_SUMS
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.losses.tokens import LossTokens


def rloo_tokens(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    """There is no ratio, and nothing to clip."""
    return -tokens.weights * tokens.advantages * tokens.logprobs


RLOO = Recipe(token_losses=rloo_tokens, averaging=ANSWER_SUMS, normalize_group_rewards=False, leave_one_out=True)
