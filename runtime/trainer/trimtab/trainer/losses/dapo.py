"""DAPO: more room upwards than downwards, so that rare tokens can grow, and every token of the step counts the same.

Its other two parts are elsewhere: groups without variance are dropped by the dataflow's filter, overlong answers are
treated by advantages/overlong.py.
"""

from __future__ import annotations

from trimtab.trainer.losses.averaging import OVER_TOKENS
from trimtab.trainer.losses.clipping import ClipRange, clipped_tokens
from trimtab.trainer.losses.recipe import Recipe

DAPO = Recipe(token_losses=clipped_tokens, averaging=OVER_TOKENS, clip=ClipRange(low=0.2, high=0.28))
