"""The three-zone rule: does the trainer wait too much, too little, or about right."""

from __future__ import annotations

import math

from trimtab.fabric.wire.balance import Branch


def three_zones(
    *,
    wait_fraction: float,
    current: int,
    accepted: int,
    consumed: int,
    tau_low: float,
    tau_high: float,
    shrink_margin: float,
) -> tuple[Branch, int]:
    """The zone and the number of instances it asks for.

    Above tau_high the trainer starves: grow so that its waiting would vanish, a hundredfold at most. Below tau_low it
    never waits: shrink to what it consumes, with a margin, but only when the window saw production and consumption.
    """
    if wait_fraction > tau_high:
        return Branch.GROW, _ceil(current / max(0.01, 1.0 - wait_fraction))
    if wait_fraction < tau_low and accepted > 0 and consumed > 0:
        return Branch.SHRINK, min(current, _ceil(current * (consumed / accepted) * shrink_margin))
    return Branch.HOLD, current


def _ceil(instances: float) -> int:
    """Rounding errors ask for no instance: 20 · 100/220 · 1.1 is ten."""
    return math.ceil(instances - 1e-9)
