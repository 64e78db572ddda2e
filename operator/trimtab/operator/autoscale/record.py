"""A decision in words: the status record, conditions in HPA's vocabulary, and events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from trimtab.api.autoscaling import Autoscaling, AutoscalingStatus, PoolDecision
from trimtab.api.conditions import ConditionType
from trimtab.operator.autoscale.fleet import Fleet
from trimtab.operator.autoscale.guard_rails import Bounded, Limit
from trimtab.operator.autoscale.history import ByHand, History
from trimtab.operator.autoscale.recommendation import LatestReports, Recommendation
from trimtab.operator.conditions import Statement, moment
from trimtab.operator.event_reasons import RESCALED, SCALED_BY_HAND

MAX_MESSAGE = 2048
_MAX_REASON = 128
_SIZE_LIMITS = frozenset(
    ("TooManyReplicas", "TooFewReplicas", "ScaleUpLimit", "ScaleDownLimit", "ScaleUpPaused", "ScaleDownPaused")
)
_WAITS = frozenset(("ScaleDownStabilized", "ScaleUpStabilized", "CoolingDown"))


@dataclass(frozen=True, kw_only=True)
class ScaleEvent:
    reason: str
    message: str


def status(
    recommendation: Recommendation,
    kept: Bounded,
    *,
    config: Autoscaling,
    fleet: Fleet,
    reports: LatestReports,
    history: History,
    now: float,
) -> AutoscalingStatus:
    """`history` as it is after the decision."""
    known = [report for report in reports.values() if report is not None]
    return AutoscalingStatus(
        mode=config.mode,
        current=fleet.total,
        recommended=sum(recommendation.targets.values()),
        bounded=sum(kept.targets.values()),
        reason=recommendation.reason[:_MAX_REASON],
        message=explained(recommendation, kept.limits, dry=config.mode == "DryRun")[:MAX_MESSAGE],
        maintainer=recommendation.maintainer,
        waiting_fraction=max((report.wait_fraction for report in known), default=None),
        pools=tuple(
            PoolDecision(name=pool.name, current=pool.desired, target=kept.targets[pool.name]) for pool in fleet.pools
        ),
        last_report_time=max((moment(report.at) for report in known), default=None),
        last_decision_time=moment(now),
        last_scale_time=_time(history.last_change),
        cooldown_until=_time(history.cooldown_until if history.cooldown_until > now else None),
    )


def statements(
    recommendation: Recommendation,
    kept: Bounded,
    *,
    config: Autoscaling,
    fleet: Fleet,
    unknown: Limit | None,
    by_hand: ByHand | None,
) -> tuple[Statement, ...]:
    changes = kept.targets != fleet.sizes
    return (
        _able(kept, config=config, changes=changes, by_hand=by_hand),
        _active(config=config, unknown=unknown),
        _limited(kept, recommendation),
    )


def not_scaling() -> tuple[Statement, ...]:
    """What is said in mode Off."""
    return (
        Statement(
            type=ConditionType.SCALING_ACTIVE,
            holds=False,
            reason="ScalingDisabled",
            message="autoscaling.mode is Off: pools keep their replicas",
        ),
    )


def events(
    recommendation: Recommendation, kept: Bounded, *, config: Autoscaling, fleet: Fleet, by_hand: ByHand | None
) -> tuple[ScaleEvent, ...]:
    """One for a change, and one when a person or another program has made one. `by_hand` only when it is new."""
    said = []
    if by_hand is not None:
        said.append(ScaleEvent(reason=SCALED_BY_HAND, message=whose_number(by_hand)))
    if config.mode == "Auto" and kept.targets != fleet.sizes:
        moved = ", ".join(
            f"{name} {size} → {kept.targets[name]}" for name, size in fleet.sizes.items() if kept.targets[name] != size
        )
        why = explained(recommendation, kept.limits, dry=False)
        said.append(
            ScaleEvent(
                reason=RESCALED,
                message=f"New size: {sum(kept.targets.values())}; reason: {recommendation.reason}; {moved}: {why}",
            )
        )
    return tuple(said)


def explained(recommendation: Recommendation, limits: tuple[Limit, ...], *, dry: bool) -> str:
    sentence = "; ".join((recommendation.message, *(limit.message for limit in _new(recommendation, limits))))
    return f"{sentence} (mode DryRun: not carried out)" if dry else sentence


def whose_number(by_hand: ByHand) -> str:
    return (
        f"pool {by_hand.pool} was scaled by hand from {by_hand.before} to {by_hand.after}; with autoscaling mode Auto "
        "the autoscaler owns spec.replicas and goes on from there: to keep a size, set the pool's minReplicas and "
        "maxReplicas to it in the job, or autoscaling.mode to Off"
    )


def _able(kept: Bounded, *, config: Autoscaling, changes: bool, by_hand: ByHand | None) -> Statement:
    waiting = next((limit for limit in kept.limits if limit.reason in _WAITS), None)
    if by_hand is not None:
        reason, message = "ScaledByHand", whose_number(by_hand)
    elif waiting is not None:
        reason, message = waiting.reason, waiting.message
    elif changes and config.mode == "Auto":
        reason, message = "Rescaling", f"the new size is {sum(kept.targets.values())}"
    else:
        reason, message = "ReadyForNewScale", "the last change is long enough ago"
    holds = waiting is None or waiting.reason != "CoolingDown"
    return Statement(type=ConditionType.ABLE_TO_SCALE, holds=holds, reason=reason, message=message)


def _active(*, config: Autoscaling, unknown: Limit | None) -> Statement:
    if unknown is not None:
        return Statement(type=ConditionType.SCALING_ACTIVE, holds=False, reason=unknown.reason, message=unknown.message)
    dry = config.mode == "DryRun"
    return Statement(
        type=ConditionType.SCALING_ACTIVE,
        holds=True,
        reason="DryRun" if dry else "ValidMetricFound",
        message="decisions are recorded and not carried out" if dry else "every policy has a fresh balance report",
    )


def _limited(kept: Bounded, recommendation: Recommendation) -> Statement:
    limit = next((limit for limit in kept.limits if limit.reason in _SIZE_LIMITS), None)
    if limit is None:
        return Statement(
            type=ConditionType.SCALING_LIMITED,
            holds=False,
            reason="DesiredWithinRange",
            message=f"the size wanted, {sum(recommendation.targets.values())}, is within bounds and rates",
        )
    return Statement(type=ConditionType.SCALING_LIMITED, holds=True, reason=limit.reason, message=limit.message)


def _new(recommendation: Recommendation, limits: tuple[Limit, ...]) -> list[Limit]:
    """Those that the recommendation does not speak of itself."""
    return [limit for limit in limits if limit.reason != recommendation.reason]


def _time(at: float | None) -> datetime | None:
    return None if at is None else moment(at)
