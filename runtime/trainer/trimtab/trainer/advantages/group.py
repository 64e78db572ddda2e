"""Group-relative advantages: how much better a sample did than the others of its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

_EPSILON = 1e-6


def group_advantage(reward: float, rewards: Sequence[float], *, normalize: bool) -> float:
    """The reward less its group's mean, divided by the group's (unbiased) deviation when asked to.

    A group of one has nothing to compare with: its advantage is its reward.
    """
    if len(rewards) == 1:
        return reward
    mean = math.fsum(rewards) / len(rewards)
    if not normalize:
        return reward - mean
    variance = math.fsum((other - mean) ** 2 for other in rewards) / (len(rewards) - 1)
    return (reward - mean) / (math.sqrt(variance) + _EPSILON)
