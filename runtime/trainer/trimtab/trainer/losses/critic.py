"""A critic: a value head learns what tokens led to, in the samples of another policy, whose PPO asks it in turn.

The return of a token is its advantage and the value that the advantage was made with, which a stage computed with older
weights. Moving further from that value than the clip allows brings nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trimtab.trainer.losses.averaging import OVER_TOKENS
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.recipe import RatioTo, Recipe
from trimtab.trainer.losses.tokens import LossTokens


def value_losses(
    values: torch.Tensor, *, old_values: torch.Tensor, returns: torch.Tensor, clip: ClipRange
) -> torch.Tensor:
    """Of each token, half the squared distance from the return: the worse of the plain and the clipped."""
    bounded = torch.minimum(torch.maximum(values, old_values - clip.low), old_values + clip.high)
    return torch.maximum((values - returns).square(), (bounded - returns).square()) / 2


@dataclass(frozen=True, kw_only=True)
class CriticLosses:
    """`stage` computed the values that the advantages were made with."""

    stage: str

    def __call__(self, tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
        assert tokens.values is not None, "a network with a value head says values"
        old = tokens.columns[self.stage]
        return value_losses(tokens.values, old_values=old, returns=tokens.advantages + old, clip=clip)


def critic(*, stage: str) -> Recipe:
    return Recipe(
        token_losses=CriticLosses(stage=stage),
        averaging=OVER_TOKENS,
        clip=ClipRange(low=0.2, high=0.2),
        ratio_to=RatioTo.SAMPLED,
        value_head=True,
    )
