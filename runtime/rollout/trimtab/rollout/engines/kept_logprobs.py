"""Logprobs of the distribution that was drawn from, for an engine that tells those of the whole one.

SGLang draws from what top-k, top-p and min-p leave, and its logprobs are of the distribution before. The kept tokens
are among the k likeliest, whose logprobs it tells too: what they add up to is what has to be divided by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trimtab.api.support import SGLANG_TOP_K
from trimtab.rollout.engines.contract import SamplingSettings

_GREEDY_BELOW = 1e-5


def likeliest_needed(settings: SamplingSettings) -> int:
    """How many of the likeliest tokens' logprobs it takes; 0 where what the engine tells is left as it is: everything
    is kept, or too many tokens could be, or nothing is drawn.
    """
    if settings.temperature < _GREEDY_BELOW or not 0 < settings.top_k <= SGLANG_TOP_K:
        return 0
    return settings.top_k


def of_the_kept(logprob: float, likeliest: Sequence[float], *, settings: SamplingSettings) -> float:
    """`likeliest` are the logprobs of the top-k in descending order, of the whole distribution as `logprob` is."""
    kept, edge = 0.0, 0.0
    for other in likeliest:
        # Top-p, like SGLang: a token is kept as long as those before it do not reach it.
        if kept >= settings.top_p or math.exp(other - likeliest[0]) < settings.min_p:
            break
        kept += math.exp(other)
        edge = other
    # It was drawn, so it was kept: an edge that rounding has moved does not leave it out.
    if logprob < edge:
        kept += math.exp(logprob)
    return logprob - math.log(kept)
