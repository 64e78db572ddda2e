"""Dr. GRPO: GRPO without its two biases. Answers are divided by one constant instead of their own length, and
advantages are not divided by their group's deviation.
"""

from __future__ import annotations

from trimtab.trainer.losses.averaging import OVER_PLACES
from trimtab.trainer.losses.clipping import ClipRange, clipped_tokens
from trimtab.trainer.losses.recipe import Recipe

DRGRPO = Recipe(
    token_losses=clipped_tokens,
    averaging=OVER_PLACES,
    clip=ClipRange(low=0.2, high=0.2),
    normalize_group_rewards=False,
)
