"""From capacity to replicas: pools fill best-first and drain worst-first, within their own bounds, and all policies
share them. The neediest decides growth; nothing goes that any of them needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.scalars import MAX_REPLICAS
from trimtab.fabric.wire.balance import Branch
from trimtab.operator.autoscale.fleet import Fleet, Pool, Targets, Weights, best_first

# Rounding errors ask for no replica, and save none.
_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class Want:
    """What one policy's evidence asks of the fleet."""

    policy: str
    branch: Branch
    capacity: float
    """The least that will do, over all pools."""
    reason: str
    """One CamelCase word."""
    message: str
    """One sentence with the numbers."""
    wait: float | None = None
    """Waiting fraction of the window it rests on."""
    at: float | None = None
    """The end of that window."""


def distributed(wants: Sequence[Want], *, fleet: Fleet, weights: Weights) -> dict[str, int]:
    """Targets by pool that give every policy what it wants. A policy that nothing is known of must be among the wants
    with what it has: else its pools would be drained for the others.
    """
    targets = fleet.sizes

    def missing(want: Want) -> float:
        return want.capacity - fleet.capacity(targets, weights)

    for want in sorted(wants, key=lambda want: (-missing(want), want.policy)):
        for pool in best_first(fleet, weights):
            if missing(want) > _EPSILON * want.capacity:
                more = math.ceil(missing(want) / weights[pool.name] - _EPSILON)
                targets[pool.name] = _at_most(pool, targets[pool.name] + more)
    if wants and targets == fleet.sizes:
        for pool in reversed(best_first(fleet, weights)):
            spare = min((-missing(want) for want in wants), default=0.0)
            fewer = math.floor(max(0.0, spare) / weights[pool.name] + _EPSILON)
            targets[pool.name] = max(min(pool.least, targets[pool.name]), targets[pool.name] - fewer)
    return targets


def within_bounds(targets: Targets, *, fleet: Fleet, weights: Weights, least: int, most: int | None) -> dict[str, int]:
    """The nearest targets that keep every pool's bounds and the job's. Where these contradict each other, a pool's
    minimum holds before the job's maximum, and a pool's maximum before the job's minimum.
    """
    order = best_first(fleet, weights)
    bounded = {pool.name: _at_most(pool, max(pool.least, targets[pool.name])) for pool in order}
    short = least - sum(bounded.values())
    for pool in order:
        if short > 0:
            grown = _at_most(pool, bounded[pool.name] + short)
            short -= grown - bounded[pool.name]
            bounded[pool.name] = grown
    over = 0 if most is None else sum(bounded.values()) - most
    for pool in reversed(order):
        if over > 0:
            shrunk = max(min(pool.least, bounded[pool.name]), bounded[pool.name] - over)
            over -= bounded[pool.name] - shrunk
            bounded[pool.name] = shrunk
    return {pool.name: bounded[pool.name] for pool in fleet.pools}


def spread(total: int, *, fleet: Fleet, weights: Weights) -> dict[str, int]:
    """A total as targets by pool: what is added fills best-first, what is taken away
    drains worst-first.
    """
    return within_bounds(fleet.sizes, fleet=fleet, weights=weights, least=total, most=total)


def _at_most(pool: Pool, replicas: int) -> int:
    return min(MAX_REPLICAS if pool.most is None else pool.most, replicas)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) < 0.1 else f"{100 * share:.0f} %"
