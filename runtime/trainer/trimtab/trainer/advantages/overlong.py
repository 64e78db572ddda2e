"""Answers near the length limit: a soft punishment in the reward, as in DAPO. Leaving truncated ones out of the loss is
decided where rows are made.
"""

from __future__ import annotations

from trimtab.api.algorithm import Overlong


def overlong_penalty(tokens: int, *, longest_answer: int, overlong: Overlong) -> float:
    """What is taken off the reward: nothing below the buffer zone, all of the penalty at the limit, linear between."""
    if overlong.buffer_tokens == 0:
        return 0.0
    beyond = tokens - (longest_answer - overlong.buffer_tokens)
    return overlong.penalty * min(1.0, max(0.0, beyond / overlong.buffer_tokens))
