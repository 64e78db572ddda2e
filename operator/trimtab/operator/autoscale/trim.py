"""Our policy: the smallest fleet that keeps the trainer waiting at most tauLow of its time.

The published formula reads one window. This policy reads all recent ones: it damps them, scales each to the load of
today, and counts capacity that is still starting. It looks ahead by the time that pods take to start.

The samples in the buffer are its safety. While they last, a fleet that is a little too small costs the trainer nothing.
So the policy can try a smaller fleet, and can order a larger one just in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.autoscaling import Autoscaling
from trimtab.fabric.wire.balance import Branch
from trimtab.operator.autoscale.distribution import Want, percent
from trimtab.operator.autoscale.fleet import Fleet, Weights
from trimtab.operator.autoscale.need import OTHER_EPISODES, Need, growth_ahead, need_of
from trimtab.operator.autoscale.windows import Window

_MOST_TRIED_LESS = 0.2
# A need that was measured at a higher load is scaled down in proportion. Long responses cost more than that.
_BELOW_MEASURED = 0.9
_RESERVE_STEPS = 1.0
_LEAST_TAKEN = 0.25
# One replica less is not missed where the others would then use at most this share of their places.
_EASILY_TAKEN_OVER = 0.7
# In windows. A burst comes again within fewer.
_LONG_IDLE = 12


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The latest window of a policy and what it means for the fleet as it will be."""

    latest: Window
    have: float
    """Capacity asked for, including replicas that are still starting."""
    replica: float
    """Capacity of the smallest replica that could go; 0 where none can."""
    need: Need
    growth: float
    """Factor by which the need will have grown when pods asked for now are ready."""
    steps_ahead: float
    """Trainer steps until pods that the next report asks for would be ready."""
    most_used: float
    """The largest share of the engines' places that was in use lately; 1 where it is not reported."""

    @property
    def ahead(self) -> float:
        """Capacity that will be needed then; 0 when no window has measured it."""
        needed = self.need.measured or 0.0
        return self.growth * (needed if self.need.enough is None else min(needed, self.need.enough))

    @property
    def waiting(self) -> float:
        """Share of its time that the trainer would wait from then on, with the capacity that was asked for."""
        return max(0.0, 1.0 - self.have / self.ahead) if self.ahead > 0 else 0.0

    @property
    def spare_steps(self) -> float | None:
        """Steps in the buffer beyond the reserve; None where the buffer is not reported."""
        held = self.latest.steps_in_reserve
        return None if held is None else held - _RESERVE_STEPS


def trim(windows: Sequence[Window], *, fleet: Fleet, weights: Weights, config: Autoscaling) -> Want:
    """What one policy needs, from its windows: oldest first, at least one."""
    seen = _outlook(windows, fleet=fleet, weights=weights, config=config)
    latest = seen.latest
    waits = f"the trainer of {latest.policy} waits {percent(latest.wait)} of its time"
    if seen.waiting > config.tau_low and (latest.wait > config.tau_high or _runs_dry(seen, config)):
        reason = "TrainerStarving" if latest.wait > config.tau_low else "BufferRunningDry"
        return _want(
            seen,
            Branch.GROW,
            seen.ahead * (1 - config.tau_low / 2),
            reason,
            f"{waits} and would wait {percent(seen.waiting)} for good with what it has{_in_buffer(seen)}",
        )
    if latest.wait >= config.tau_low:
        if latest.wait <= config.tau_high:
            return _want(seen, Branch.HOLD, seen.have, "WithinBand", f"{waits}, which asks for no change")
        why = (
            "what is on its way will do"
            if seen.need.measured
            else "its pods have only begun, so the next report decides"
        )
        return _want(seen, Branch.HOLD, seen.have, "CapacityArriving", f"{waits}, and {why}")
    least, reason, why = min(_least(seen, config), _with_idle_engines(seen))
    if least >= seen.have:
        return _want(seen, Branch.HOLD, seen.have, "WithinBand", f"{waits}, which is as it should be")
    return _want(seen, Branch.SHRINK, least, reason, f"{waits}, {why}")


def _outlook(windows: Sequence[Window], *, fleet: Fleet, weights: Weights, config: Autoscaling) -> Outlook:
    latest = windows[-1]
    startup_s = fleet.startup_s()
    return Outlook(
        latest=latest,
        have=fleet.capacity(fleet.sizes, weights),
        replica=min((weights[pool.name] for pool in fleet.pools if pool.desired > pool.least), default=0.0),
        need=need_of(windows, fleet=fleet, weights=weights, tau_low=config.tau_low, tau_high=config.tau_high),
        growth=growth_ahead(windows, startup_s=startup_s),
        steps_ahead=latest.steps * (1 + startup_s / latest.seconds),
        most_used=max(1.0 if window.busiest is None else window.busiest for window in windows[-_LONG_IDLE:]),
    )


def _runs_dry(seen: Outlook, config: Autoscaling) -> bool:
    """Whether the buffer will be empty before pods that the next report asks for are ready."""
    if seen.spare_steps is None:
        return seen.latest.wait > config.tau_low
    return seen.spare_steps < seen.steps_ahead * seen.waiting


def _least(seen: Outlook, config: Autoscaling) -> tuple[float, str, str]:
    """The least capacity that is known to suffice or can safely be tried, with the reason and half a sentence."""
    need = seen.need
    if need.measured is not None and (need.of_this_load or need.enough is None):
        keeps_pace = seen.growth * need.measured
        return keeps_pace, "MoreThanNeeded", f"and {percent(keeps_pace / max(1e-9, seen.have))} of the fleet keep pace"
    if need.enough is None or not seen.latest.settled:
        return seen.have, "WithinBand", ""
    if seen.spare_steps is None:
        known = need.enough * config.shrink_margin
        return known, "MoreThanNeeded", f"and rollout makes {percent(seen.latest.kept_pace or 1)} of what it takes"
    if seen.latest.drains_buffer:
        return seen.have, "WithinBand", ""  # a try would be paid from the reserve, which is in use already
    tried = min(need.enough, seen.have * (1 - _affordable(seen)))
    if need.measured is not None:
        scaled = seen.growth * need.measured
        tried = min(max(tried, _BELOW_MEASURED * scaled), scaled)
    return tried, "TryingLess", f"and nothing speaks against fewer replicas{_in_buffer(seen)}"


def _with_idle_engines(seen: Outlook) -> tuple[float, str, str]:
    """One replica less where most places of the engines are free and no measurement says that it is needed. In a small
    fleet one replica may be more than the buffer could make up for.
    """
    left, busiest = seen.have - seen.replica, seen.latest.busiest
    if busiest is None or seen.need.enough is None or not seen.latest.settled:
        return seen.have, "WithinBand", ""
    # Where hardly a place has been used for long, an old measurement no longer describes the job: a tool may have been
    # slow then.
    if min(seen.growth * (seen.need.measured or 0.0), OTHER_EPISODES * seen.most_used * seen.have) > left:
        return seen.have, "WithinBand", ""
    if busiest * seen.have > _EASILY_TAKEN_OVER * left:
        return seen.have, "WithinBand", ""
    return left, "EnginesIdle", f"and at most {percent(busiest)} of the engines' places are in use"


def _affordable(seen: Outlook) -> float:
    """The share of the fleet that can be removed as a try: if it turns out to be needed, the buffer lasts until it is
    back. Engines with free places take over a part of it.
    """
    taken = 1.0 if seen.latest.busiest is None else max(_LEAST_TAKEN, seen.latest.busiest)
    return min(_MOST_TRIED_LESS, max(0.0, seen.spare_steps or 0.0) / (seen.steps_ahead * taken))


def _in_buffer(seen: Outlook) -> str:
    held = seen.latest.steps_in_reserve
    return "" if held is None else f"; samples for {held:.1f} steps are in the buffer"


def _want(seen: Outlook, branch: Branch, capacity: float, reason: str, message: str) -> Want:
    latest = seen.latest
    return Want(
        policy=latest.policy,
        branch=branch,
        capacity=capacity,
        reason=reason,
        message=message,
        wait=latest.wait,
        at=latest.at,
    )
