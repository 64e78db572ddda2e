"""The decision about the size of a job's fleet, pure: evidence, rails, and a record that explains it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.api.autoscaling import Autoscaling, AutoscalingStatus
from trimtab.api.scalars import MAX_REPLICAS
from trimtab.operator.autoscale import record
from trimtab.operator.autoscale.fleet import Fleet, Targets
from trimtab.operator.autoscale.guard_rails import Bounded, bounded
from trimtab.operator.autoscale.history import History, decided, observed, remembering
from trimtab.operator.autoscale.recommendation import (
    LatestReports,
    Recommendation,
    missing_evidence,
    pool_weights,
    recommend,
    stages_behind,
)
from trimtab.operator.autoscale.record import ScaleEvent
from trimtab.operator.conditions import Statement

# Rails that wait for time to pass are tried again as often as HPA tries.
REQUEUE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    targets: dict[str, int]
    """Replicas by pool: to be carried out in mode Auto, and only shown in DryRun."""
    status: AutoscalingStatus
    statements: tuple[Statement, ...]
    events: tuple[ScaleEvent, ...]
    history: History
    """To be handed to the next decision."""
    requeue_at: float | None
    """When time alone may change the decision; None when only a new report can."""


def decide(reports: LatestReports, *, config: Autoscaling, fleet: Fleet, history: History, now: float) -> Decision:
    """By the formula of the manifest; in mode Auto or DryRun."""
    seen = watch(reports, config=config, fleet=fleet, history=history, now=now)
    advice = recommend(reports, config=config, fleet=fleet, history=seen, now=now)
    return settle(advice, reports, config=config, fleet=fleet, before=history, history=seen, now=now)


def watch(reports: LatestReports, *, config: Autoscaling, fleet: Fleet, history: History, now: float) -> History:
    """Takes in what there is to see. A recommendation by other means begins here and ends with `settle`."""
    known = [report for report in reports.values() if report is not None]
    return observed(history, config=config, fleet=fleet, reports=known, now=now)


def settle(
    advice: Recommendation,
    reports: LatestReports,
    *,
    config: Autoscaling,
    fleet: Fleet,
    before: History,
    history: History,
    now: float,
) -> Decision:
    """What becomes of a recommendation, by formula or agent. `before` is the history as it was before `watch`."""
    advice = replace(advice, targets=_plausible(advice.targets, fleet=fleet))
    unknown = missing_evidence(reports, config=config, now=now)
    advice = replace(advice, targets={name: min(size, MAX_REPLICAS) for name, size in advice.targets.items()})
    kept = bounded(
        advice.targets,
        fleet=fleet,
        weights=pool_weights(config=config, fleet=fleet, history=history),
        config=config,
        history=history,
        no_shrink=unknown,
        no_growth=stages_behind(reports),
        now=now,
    )
    after = decided(history, config=config, fleet=fleet, wanted=kept.wanted, targets=kept.targets, now=now)
    status = record.status(advice, kept, config=config, fleet=fleet, reports=reports, history=after, now=now)
    new_by_hand = history.by_hand if history.by_hand != before.by_hand else None
    return Decision(
        targets=kept.targets,
        status=status,
        statements=record.statements(
            advice, kept, config=config, fleet=fleet, unknown=unknown, by_hand=history.by_hand
        ),
        events=record.events(advice, kept, config=config, fleet=fleet, by_hand=new_by_hand),
        history=remembering(after, status, now=now),
        requeue_at=_requeue_at(kept, reports, config=config, now=now),
    )


def _plausible(targets: Targets, *, fleet: Fleet) -> dict[str, int]:
    """For every pool that exists a possible number: a recommendation may come from a language model."""
    return {name: min(MAX_REPLICAS, max(0, targets.get(name, size))) for name, size in fleet.sizes.items()}


def _requeue_at(kept: Bounded, reports: LatestReports, *, config: Autoscaling, now: float) -> float | None:
    if kept.wanted != kept.targets:
        return now + REQUEUE_S
    stale = [report.at + config.report_timeout_seconds + 1 for report in reports.values() if report is not None]
    return min((at for at in stale if at > now), default=None)
