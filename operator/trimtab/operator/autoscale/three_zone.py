"""AstraFlow's policy as published: one report, three zones, nothing remembered."""

from __future__ import annotations

from trimtab.api.autoscaling import Autoscaling
from trimtab.fabric.three_zones import three_zones
from trimtab.fabric.wire.balance import BalanceReport, Branch
from trimtab.fabric.wire.member import State
from trimtab.operator.autoscale.distribution import Want, percent
from trimtab.operator.autoscale.fleet import Fleet


def three_zone(report: BalanceReport, *, fleet: Fleet, config: Autoscaling) -> Want:
    """Counted in devices, as in the paper."""
    per_replica = {pool.name: pool.devices for pool in fleet.pools}
    devices = sum(per_replica.get(instance.pool, 1) for instance in report.instances if instance.state is State.READY)
    accepted, consumed = report.accepted.samples, report.consumed.samples - report.replayed
    branch, target = three_zones(
        wait_fraction=report.wait_fraction,
        current=devices,
        accepted=accepted,
        consumed=consumed,
        tau_low=config.tau_low,
        tau_high=config.tau_high,
        shrink_margin=config.shrink_margin,
    )
    waits = f"the trainer of {report.policy} waits {percent(report.wait_fraction)} of its time"
    match branch:
        case Branch.GROW:
            reason, why = "TrainerStarving", f"{waits}, above tauHigh {percent(config.tau_high)}"
        case Branch.SHRINK:
            reason = "MoreThanNeeded" if target < devices else "WithinBand"
            why = f"{waits}, below tauLow {percent(config.tau_low)}, and takes {consumed} of {accepted} samples"
        case Branch.HOLD:
            reason, why = "WithinBand", f"{waits}, which asks for no change"
    have = float(sum(pool.desired * pool.devices for pool in fleet.pools))
    return Want(
        policy=report.policy,
        branch=branch,
        # Devices that were asked for since the report are no reason to shrink, nor to grow once more.
        capacity=min(have, target) if branch is Branch.SHRINK else max(have, target if branch is Branch.GROW else 0),
        reason=reason,
        message=f"{why}: {target} devices, after {devices}",
        wait=report.wait_fraction,
        at=report.at,
    )
