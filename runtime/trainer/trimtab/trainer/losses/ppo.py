"""Decoupled PPO for stale data: the clip is around the policy at the beginning of the step, which is near, and the
distance from there to the policy that sampled, which may be far, is in the importance weight.
"""

from __future__ import annotations

from trimtab.trainer.losses.averaging import OVER_TOKENS
from trimtab.trainer.losses.clipping import ClipRange, clipped_tokens
from trimtab.trainer.losses.recipe import RatioTo, Recipe

PPO = Recipe(
    token_losses=clipped_tokens,
    averaging=OVER_TOKENS,
    clip=ClipRange(low=0.2, high=0.2),
    ratio_to=RatioTo.STEP_BEGIN,
)
