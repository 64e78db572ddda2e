"""What the evidence of all policies together asks of the fleet, before any rail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.api.autoscaling import Autoscaling
from trimtab.fabric.wire.balance import BalanceReport, Branch
from trimtab.operator.autoscale.distribution import Want, distributed
from trimtab.operator.autoscale.fleet import Fleet, Targets, Weights, device_weights, speed_weights
from trimtab.operator.autoscale.guard_rails import Limit
from trimtab.operator.autoscale.history import History
from trimtab.operator.autoscale.three_zone import three_zone
from trimtab.operator.autoscale.trim import trim
from trimtab.operator.autoscale.windows import usual_speeds
from trimtab.operator.conditions import moment

_STAGED = 0.5
"""Share of the samples under way that wait for stages, above which rollouts are not what a trainer lacks."""

LatestReports = Mapping[str, BalanceReport | None]
"""The latest of every policy that still learns; None for one that has none yet."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The sizes that a maintainer wants, and why. The maintainer is a formula or a language model."""

    targets: Targets
    reason: str
    """One CamelCase word."""
    message: str
    """One sentence."""
    maintainer: Literal["Policy", "Agent"] = "Policy"


def recommend(
    reports: LatestReports, *, config: Autoscaling, fleet: Fleet, history: History, now: float
) -> Recommendation:
    weights = pool_weights(config=config, fleet=fleet, history=history)
    wants = [
        _want(policy, report, config=config, fleet=fleet, weights=weights, history=history, now=now)
        for policy, report in sorted(reports.items())
    ]
    targets = distributed(wants, fleet=fleet, weights=weights)
    decisive = _decisive(wants, fleet=fleet, weights=weights, targets=targets)
    if decisive is None:
        return Recommendation(targets=targets, reason="NoPolicyLearns", message="no policy is being trained")
    reason, message = decisive.reason, decisive.message
    if decisive.branch is Branch.SHRINK and targets == fleet.sizes:
        reason, message = "WithinBand", f"{message}, which leaves no replica to spare"
    return Recommendation(targets=targets, reason=reason, message=message)


def missing_evidence(reports: LatestReports, *, config: Autoscaling, now: float) -> Limit | None:
    """Why nothing may shrink: a policy of which nothing is known now. None when all is known."""
    for policy, report in sorted(reports.items()):
        if report is None:
            return Limit(reason="ReportMissing", message=f"there is no balance report of {policy} yet")
        if now - report.at > config.report_timeout_seconds:
            return Limit(
                reason="ReportStale",
                # The moment and not the age: what changes every second would be written every second.
                message=f"the last balance report of {policy} came at {moment(report.at):%H:%M:%S} UTC, "
                f"more than reportTimeoutSeconds {config.report_timeout_seconds} ago",
            )
    return None


def stages_behind(reports: LatestReports) -> Limit | None:
    """Why nothing of the fleet need grow: samples wait for stages, and more of them would wait there too."""
    for policy, report in sorted(reports.items()):
        if report is not None and report.room and report.staged > _STAGED * report.room:
            return Limit(
                reason="StagesBehind",
                message=f"{report.staged} samples of {policy} wait for stages, of {report.room} that may be under way:"
                " more rollouts would wait there too",
            )
    return None


def pool_weights(*, config: Autoscaling, fleet: Fleet, history: History) -> Weights:
    """The published formula counts devices; ours knows that some are faster."""
    if config.maintainer.policy == "ThreeZone":
        return device_weights(fleet)
    windows = [window for windows in history.windows.values() for window in windows]
    return speed_weights(fleet, usual_speeds(windows))


def _want(
    policy: str,
    report: BalanceReport | None,
    *,
    config: Autoscaling,
    fleet: Fleet,
    weights: Weights,
    history: History,
    now: float,
) -> Want:
    unknown = missing_evidence({policy: report}, config=config, now=now)
    if report is None or unknown is not None:
        assert unknown is not None
        return Want(
            policy=policy,
            branch=Branch.HOLD,
            capacity=fleet.capacity(fleet.sizes, weights),
            reason=unknown.reason,
            message=f"{unknown.message}, so nothing shrinks",
        )
    if config.maintainer.policy == "ThreeZone":
        return three_zone(report, fleet=fleet, config=config)
    return trim(history.windows[policy], fleet=fleet, weights=weights, config=config)


def _decisive(wants: Sequence[Want], *, fleet: Fleet, weights: Weights, targets: Targets) -> Want | None:
    """The want that explains the targets: the neediest when the fleet grows; else one of which nothing is known; else
    the one with least to spare.
    """
    have = {want.policy: fleet.capacity(fleet.sizes, weights) for want in wants}

    def pressure(want: Want) -> float:
        return want.capacity / max(1e-9, have[want.policy])

    unknown = [want for want in wants if want.at is None]
    grows = sum(targets.values()) > fleet.total or any(want.branch is Branch.GROW for want in wants)
    return max(wants if grows or not unknown else unknown, key=pressure, default=None)
