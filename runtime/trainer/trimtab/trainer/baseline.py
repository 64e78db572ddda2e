"""What the rewards of one prompt are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

_DEVIATION_EPSILON = 1e-6


class GroupBaseline:
    """What the rewards of one prompt are compared with: a reward less the mean of the group, or of the others in it,
    divided by the group's (unbiased) deviation when asked to. A group of one has nothing to compare with: its advantage
    is its reward.
    """

    def __init__(self, rewards: Sequence[float], *, normalize: bool, leave_one_out: bool = False) -> None:
        self._mean, self._scale = 0.0, 1.0
        if len(rewards) < 2:
            return
        self._mean = math.fsum(rewards) / len(rewards)
        if normalize:
            variance = math.fsum((reward - self._mean) ** 2 for reward in rewards) / (len(rewards) - 1)
            self._scale = math.sqrt(variance) + _DEVIATION_EPSILON
        if leave_one_out:
            # A reward less the mean of the others is n/(n-1) times what it is above the mean of all.
            self._scale *= (len(rewards) - 1) / len(rewards)

    def advantage(self, reward: float) -> float:
        return (reward - self._mean) / self._scale
