"""GRPO: the clipped surrogate, averaged over the tokens of an answer and then over the answers of the step."""

from __future__ import annotations

from trimtab.trainer.losses.averaging import OVER_ANSWERS
from trimtab.trainer.losses.clipping import ClipRange, clipped_tokens
from trimtab.trainer.losses.recipe import Recipe

GRPO = Recipe(token_losses=clipped_tokens, averaging=OVER_ANSWERS, clip=ClipRange(low=0.2, high=0.2))
