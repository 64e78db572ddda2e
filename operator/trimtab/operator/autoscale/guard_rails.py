"""What the rails leave of a recommendation, from a formula or from a language model.

In this order: bounds, evidence, pauses, stabilisation, cool-down, rate limits. The bounds are what a person
asked for, so a fleet outside them is brought back at once, whatever the other rails say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.api.autoscaling import Autoscaling
from trimtab.api.scalars import CountOrPercent, count_of
from trimtab.operator.autoscale.distribution import within_bounds
from trimtab.operator.autoscale.fleet import Fleet, Pool, Targets, Weights, best_first
from trimtab.operator.autoscale.history import Change, History


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A rail that took something away from a recommendation."""

    reason: str
    """One CamelCase word; HPA's where it has one."""
    message: str


@dataclass(frozen=True, kw_only=True)
class Bounded:
    wanted: dict[str, int]
    """The recommendation within the bounds: what stabilisation looks back at."""
    targets: dict[str, int]
    limits: tuple[Limit, ...]


@dataclass(frozen=True, kw_only=True)
class _Scene:
    base: dict[str, int]
    """The fleet as it is, brought within its bounds."""
    fleet: Fleet
    weights: Weights
    config: Autoscaling
    history: History
    no_shrink: Limit | None
    no_growth: Limit | None
    now: float


_Rail = Callable[[dict[str, int], _Scene], tuple[dict[str, int], Limit | None]]


def bounded(
    recommended: Targets,
    *,
    fleet: Fleet,
    weights: Weights,
    config: Autoscaling,
    history: History,
    no_shrink: Limit | None,
    no_growth: Limit | None = None,
    now: float,
) -> Bounded:
    """`no_shrink` says why the evidence does not do for shrinking; None when it does. `no_growth` says why a larger
    fleet would bring nothing."""
    scene = _Scene(
        base=_brought_in(fleet.sizes, fleet, weights, config),
        fleet=fleet, weights=weights, config=config, history=history, no_shrink=no_shrink,
        no_growth=no_growth, now=now,
    )  # fmt: skip
    wanted = _brought_in(recommended, fleet, weights, config)
    limits = [_bound_met(recommended, wanted, config)]
    targets = dict(wanted)
    for rail in _RAILS:
        targets, limit = rail(targets, scene)
        limits.append(limit)
    return Bounded(wanted=wanted, targets=targets, limits=tuple(limit for limit in limits if limit is not None))


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


def _brought_in(targets: Targets, fleet: Fleet, weights: Weights, config: Autoscaling) -> dict[str, int]:
    return within_bounds(targets, fleet=fleet, weights=weights, least=config.min_replicas, most=config.max_replicas)


def _bound_met(recommended: Targets, wanted: Targets, config: Autoscaling) -> Limit | None:
    asked, allowed = sum(recommended.values()), sum(wanted.values())
    if allowed < asked:
        ceiling = f"maxReplicas {config.max_replicas}" if allowed == config.max_replicas else "the pools' maxReplicas"
        return Limit(reason="TooManyReplicas", message=f"{asked} replicas are wanted, and {ceiling} allows {allowed}")
    if allowed > asked:
        floor = f"minReplicas {config.min_replicas}" if allowed == config.min_replicas else "the pools' minReplicas"
        return Limit(reason="TooFewReplicas", message=f"{asked} replicas would do, and {floor} keeps {allowed}")
    return None


def _evidence(targets: dict[str, int], scene: _Scene) -> tuple[dict[str, int], Limit | None]:
    limit = None
    if scene.no_growth is not None and _rises(targets, scene.base):
        targets, limit = _no_higher(targets, scene.base), scene.no_growth
    if scene.no_shrink is not None and _falls(targets, scene.base):
        targets, limit = _no_lower(targets, scene.base), scene.no_shrink
    return targets, limit


def _pauses(targets: dict[str, int], scene: _Scene) -> tuple[dict[str, int], Limit | None]:
    limit = None
    if scene.config.scale_up.paused and _rises(targets, scene.base):
        targets = _no_higher(targets, scene.base)
        limit = Limit(reason="ScaleUpPaused", message="scaleUp.paused is true")
    if scene.config.scale_down.paused and _falls(targets, scene.base):
        targets = _no_lower(targets, scene.base)
        limit = Limit(reason="ScaleDownPaused", message="scaleDown.paused is true")
    return targets, limit


def _stabilisation(targets: dict[str, int], scene: _Scene) -> tuple[dict[str, int], Limit | None]:
    """Growth takes the lowest of the recent recommendations, shrinking the highest, pool by pool."""
    up, down = scene.config.scale_up.stabilization_seconds, scene.config.scale_down.stabilization_seconds
    steady: dict[str, int] = {}
    for pool, target in targets.items():
        here = scene.base[pool]
        if target > here:
            steady[pool] = max(here, min([target, *_recent(pool, scene, seconds=up)]))
        elif target < here:
            seen_all = scene.now - scene.history.since >= down
            steady[pool] = min(here, max([target, *_recent(pool, scene, seconds=down)])) if seen_all else here
        else:
            steady[pool] = target
    if sum(steady.values()) > sum(targets.values()):
        return steady, Limit(
            reason="ScaleDownStabilized", message=f"more was recommended, or nothing known, within the last {down} s"
        )
    if sum(steady.values()) < sum(targets.values()):
        return steady, Limit(reason="ScaleUpStabilized", message=f"less was recommended within the last {up} s")
    return steady, None


def _cooldown(targets: dict[str, int], scene: _Scene) -> tuple[dict[str, int], Limit | None]:
    left = scene.history.cooldown_until - scene.now
    if left <= 0 or targets == scene.base:
        return targets, None
    return scene.base, Limit(
        reason="CoolingDown", message=f"the last change was made less than {scene.config.cooldown_seconds} s ago"
    )


def _rates(targets: dict[str, int], scene: _Scene) -> tuple[dict[str, int], Limit | None]:
    order = best_first(scene.fleet, scene.weights)
    up, down = scene.config.scale_up, scene.config.scale_down
    total, changes = sum(scene.base.values()), scene.history.changes
    add = may_add(changes, total=total, max_change=up.max_change, period_s=up.period_seconds, now=scene.now)
    remove = may_remove(changes, total=total, max_change=down.max_change, period_s=down.period_seconds, now=scene.now)
    slower = _with_at_most_added(targets, scene.base, budget=add, order=order)
    slower = _with_at_most_removed(slower, scene.base, budget=remove, order=order)
    if sum(slower.values()) < sum(targets.values()):
        return slower, Limit(
            reason="ScaleUpLimit", message=f"at most {up.max_change} may be added in {up.period_seconds} s"
        )
    if sum(slower.values()) > sum(targets.values()):
        return slower, Limit(
            reason="ScaleDownLimit", message=f"at most {down.max_change} may be removed in {down.period_seconds} s"
        )
    return slower, None


def _bounds_again(targets: dict[str, int], scene: _Scene) -> tuple[dict[str, int], Limit | None]:
    """Where one pool should grow for another and only one of both may, the sum could leave the job's bounds."""
    order = best_first(scene.fleet, scene.weights)
    pairs = [(targets[pool], scene.base[pool]) for pool in targets]
    least, most = scene.config.min_replicas, scene.config.max_replicas
    if most is not None and sum(targets.values()) > most:
        budget = max(0, most - sum(map(min, pairs)))
        targets = _with_at_most_added(targets, scene.base, budget=budget, order=order)
    elif sum(targets.values()) < least:
        budget = max(0, sum(map(max, pairs)) - least)
        targets = _with_at_most_removed(targets, scene.base, budget=budget, order=order)
    return targets, None


_RAILS: tuple[_Rail, ...] = (_evidence, _pauses, _stabilisation, _cooldown, _rates, _bounds_again)


def _recent(pool: str, scene: _Scene, *, seconds: int) -> list[int]:
    """What was wanted of a pool within the last seconds: one recommendation holds until the next."""
    if seconds == 0:
        return []
    said = [wanted for wanted in scene.history.wanted if pool in wanted.targets]
    within = [wanted for wanted in said if wanted.at > scene.now - seconds]
    in_force = said[len(said) - len(within) - 1 : len(said) - len(within)] if len(said) > len(within) else []
    return [wanted.targets[pool] for wanted in (*in_force, *within)]


def _rises(targets: Targets, base: Targets) -> bool:
    return any(targets[pool] > base[pool] for pool in base)


def _falls(targets: Targets, base: Targets) -> bool:
    return any(targets[pool] < base[pool] for pool in base)


def _no_lower(targets: Targets, base: Targets) -> dict[str, int]:
    return {pool: max(target, base[pool]) for pool, target in targets.items()}


def _no_higher(targets: Targets, base: Targets) -> dict[str, int]:
    return {pool: min(target, base[pool]) for pool, target in targets.items()}


def _with_at_most_added(targets: Targets, base: Targets, *, budget: int, order: Sequence[Pool]) -> dict[str, int]:
    """The best pools get what may be added."""
    kept = dict(targets)
    for pool in order:
        more = max(0, targets[pool.name] - base[pool.name])
        if more:
            kept[pool.name] = base[pool.name] + min(more, budget)
            budget -= min(more, budget)
    return kept


def _with_at_most_removed(targets: Targets, base: Targets, *, budget: int, order: Sequence[Pool]) -> dict[str, int]:
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
    """The size at the beginning of the period, and what was added and removed since; None where that was forgotten."""
    recent = [change for change in changes if change.at > now - period_s]
    added, removed = 0, 0
    for change in recent:
        if change.added is None or change.removed is None:
            return total, None, None
        added += change.added
        removed += change.removed
    return max(0, total - added + removed), added, removed
