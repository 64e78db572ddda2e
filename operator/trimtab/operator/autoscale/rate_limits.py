"""How much a fleet may still grow or shrink in the period that now ends, and what is left of a change then."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.scalars import CountOrPercent
from trimtab.operator.autoscale.fleet import Pool, Targets
from trimtab.operator.autoscale.history import Change
from trimtab.operator.plan.pool_size import count_of


def may_add(changes: Sequence[Change], *, total: int, max_change: CountOrPercent, period_s: float, now: float) -> int:
    """Shares are of the size at the beginning of the period; a share of an empty fleet is one replica, or it would
    stay empty.
    """
    before, added, _ = _in_period(changes, total=total, period_s=period_s, now=now)
    if added is None:
        return 0
    return max(0, count_of(max_change, max(1, before), up=True) - added)


def may_remove(
    changes: Sequence[Change], *, total: int, max_change: CountOrPercent, period_s: float, now: float
) -> int:
    before, _, removed = _in_period(changes, total=total, period_s=period_s, now=now)
    if removed is None:
        return 0
    return max(0, count_of(max_change, before, up=True) - removed)


def with_at_most_added(targets: Targets, base: Targets, *, budget: int, order: Sequence[Pool]) -> dict[str, int]:
    """The best pools get what may be added."""
    kept = dict(targets)
    for pool in order:
        more = max(0, targets[pool.name] - base[pool.name])
        if more:
            kept[pool.name] = base[pool.name] + min(more, budget)
            budget -= min(more, budget)
    return kept


def with_at_most_removed(targets: Targets, base: Targets, *, budget: int, order: Sequence[Pool]) -> dict[str, int]:
    """The worst pools lose what may be removed."""
    kept = dict(targets)
    for pool in reversed(order):
        fewer = max(0, base[pool.name] - targets[pool.name])
        if fewer:
            kept[pool.name] = base[pool.name] - min(fewer, budget)
            budget -= min(fewer, budget)
    return kept


def _in_period(
    changes: Sequence[Change], *, total: int, period_s: float, now: float
) -> tuple[int, int | None, int | None]:
    """The size at the beginning of the period, and what was added and removed since; None where nobody remembers."""
    recent = [change for change in changes if change.at > now - period_s]
    added, removed = 0, 0
    for change in recent:
        if change.added is None or change.removed is None:
            return total, None, None
        added += change.added
        removed += change.removed
    return max(0, total - added + removed), added, removed
