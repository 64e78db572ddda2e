"""Waiting between attempts: exponential ceilings with full jitter, so that a fleet that lost its server together does
not come back together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FullJitter:
    """The wait before attempt n is uniform between zero and min(cap, base * 2**n)."""

    base_s: float
    cap_s: float
    uniform: Callable[[float, float], float] = random.uniform

    def delay_s(self, attempt: int) -> float:
        """`attempt` counts the failures before this one."""
        return self.uniform(0.0, self.ceiling_s(attempt))

    def ceiling_s(self, attempt: int) -> float:
        # The exponent is clamped because 2**n of an attempt counted for days no longer fits a float.
        return min(self.cap_s, self.base_s * 2.0 ** min(attempt, 60))
