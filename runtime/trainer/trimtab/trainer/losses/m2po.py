"""M2PO: tokens whose ratio to the sampling policy is furthest off are left out, as many as it takes to bring the second
moment of the log ratio under a bound. Stable on stale data, where a clip would cut off most of what teaches.

Only tokens that the update would push further away are looked at: raised ones with a positive advantage, lowered ones
with a negative one. Others are on their way back.
"""

from __future__ import annotations

import torch

from trimtab.trainer.losses.averaging import OVER_TOKENS
from trimtab.trainer.losses.clipping import ClipRange, bounded_ratio
from trimtab.trainer.losses.recipe import RatioTo, Recipe
from trimtab.trainer.losses.tokens import LossTokens


def pushed_away(log_ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Which tokens the update moves further from the policy that sampled them."""
    return log_ratio * advantages > 0


def harmful_squares(log_ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Squared log ratios of the tokens that are pushed away."""
    return log_ratio.square()[pushed_away(log_ratio, advantages)]


def kept(log_ratio: torch.Tensor, advantages: torch.Tensor, *, limit: float) -> torch.Tensor:
    """Which tokens stay, given the step's limit: all that are not pushed away, and of those the nearest."""
    return ~(pushed_away(log_ratio, advantages) & (log_ratio.square() > limit))


def furthest_kept(squares: torch.Tensor, *, bound: float) -> float:
    """The largest squared log ratio that stays, given those of all tokens that are pushed away, over the whole step.

    The largest go until the mean of the others is within the bound. Equal ones go or stay together.
    """
    if len(squares) == 0:
        return float("inf")
    ordered = squares.double().sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, dtype=torch.float64, device=ordered.device)
    # Means of ascending values ascend, so those within the bound come first.
    kept = int(torch.searchsorted(means, bound, right=True))
    if kept == len(ordered):
        return float("inf")
    dropped = ordered[kept]
    below = ordered[:kept][ordered[:kept] < dropped]
    return float(below[-1]) if len(below) else -1.0


def m2po_tokens(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    """The weights are 0 for tokens that the step leaves out; there is no clip besides."""
    return -tokens.weights * tokens.advantages * bounded_ratio(tokens.log_ratio)


M2PO = Recipe(token_losses=m2po_tokens, averaging=OVER_TOKENS, ratio_to=RatioTo.SAMPLED, second_moment_bound=0.04)
