"""Our policy: the smallest fleet that keeps the trainer waiting at most tauLow of its time, by all recent evidence.

Where the formula as published looks at one window, this one damps several, puts them on the load of today (tokens per
sample times samples per second), counts capacity that is on its way, looks ahead by the time that pods take to start,
and uses the samples that wait in the buffer as its safety: as long as they last, a fleet that is a little too small
costs the trainer nothing, so that less can be tried and more can be ordered just in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trimtab.api.autoscaling import Autoscaling
from trimtab.fabric.wire.balance import Branch
from trimtab.operator.autoscale.fleet import Fleet, Weights
from trimtab.operator.autoscale.want import Want, percent
from trimtab.operator.autoscale.windows import Window

_DAMPED_OVER = 3
_TREND_OVER = 6
_MOST_GROWTH_AHEAD = 1.5
_MOST_TRIED_LESS = 0.25
_RESERVE_STEPS = 1.0
# Without production in the window there is no ratio to go by; the formula as published doubles where w is 1/2.
_MOST_FACTOR = 2.0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The latest window of a policy and what it means for the fleet as it will be."""

    latest: Window
    have: float
    """Capacity asked for, what is on its way included."""
    need: float | None
    """Capacity that keeps pace with today's load; None when only held-back windows were seen."""
    need_ahead: float | None
    """The same by the time that pods asked for now would be ready."""
    steps_ahead: float
    """Trainer steps until pods that the next report asks for would be ready."""

    @property
    def waiting_ahead(self) -> float:
        """Share of its time that the trainer will wait for good with what we have."""
        return 0.0 if not self.need_ahead else max(0.0, 1.0 - self.have / self.need_ahead)

    @property
    def spare_steps(self) -> float | None:
        """Steps that wait in the buffer beyond the reserve."""
        held = self.latest.steps_in_reserve
        return None if held is None else held - _RESERVE_STEPS


def trim(windows: Sequence[Window], *, fleet: Fleet, weights: Weights, config: Autoscaling) -> Want:
    """From the windows of one policy, oldest first and at least one."""
    seen = outlook(windows, fleet=fleet, weights=weights, config=config)
    latest = seen.latest
    waits = f"the trainer of {latest.policy} waits {percent(latest.wait)} of its time"
    if seen.waiting_ahead > config.tau_low and (latest.wait > config.tau_high or _runs_dry(seen, config)):
        assert seen.need_ahead is not None
        starving = latest.wait > config.tau_low
        ahead = f"{percent(seen.waiting_ahead)} for good with what is asked for"
        return _want(
            seen,
            Branch.GROW,
            capacity=seen.need_ahead * (1 - config.tau_low / 2),
            reason="TrainerStarving" if starving else "BufferRunningDry",
            message=f"{waits} and would wait {ahead}{_in_buffer(seen)}",
        )
    if latest.wait >= config.tau_low:
        held = "what is asked for will do" if latest.wait > config.tau_high else "which asks for no change"
        return _want(seen, Branch.HOLD, capacity=seen.have, reason="WithinBand", message=f"{waits}, {held}")
    if seen.need is not None:
        margin = config.shrink_margin if latest.buffered is None else 1.0
        least = min(seen.have, max(seen.need, seen.need_ahead or 0.0) * margin)
        share = f"{percent(seen.need / seen.have)} of the fleet would keep pace" if seen.have else "there is no fleet"
        branch, reason = (Branch.SHRINK, "MoreThanNeeded") if least < seen.have else (Branch.HOLD, "WithinBand")
        return _want(seen, branch, capacity=least, reason=reason, message=f"{waits}, and {share}")
    less = _affordable(seen)
    if less > 0:
        return _want(
            seen,
            Branch.SHRINK,
            capacity=seen.have * (1 - less),
            reason="TryingLess",
            message=f"{waits} and rollout is held back by a full buffer, so less is tried{_in_buffer(seen)}",
        )
    return _want(seen, Branch.HOLD, capacity=seen.have, reason="WithinBand", message=f"{waits}, as it should")


def outlook(windows: Sequence[Window], *, fleet: Fleet, weights: Weights, config: Autoscaling) -> Outlook:
    latest = windows[-1]
    need = needed(windows, fleet=fleet, weights=weights, config=config)
    startup_s = fleet.startup_s(latest.policy)
    step_s = latest.seconds / latest.steps
    return Outlook(
        latest=latest,
        have=fleet.capacity(fleet.sizes, weights, policy=latest.policy),
        need=need,
        need_ahead=None if need is None else need * growth_ahead(windows, startup_s=startup_s),
        steps_ahead=latest.steps + startup_s / step_s if step_s > 0 else float(latest.steps),
    )


def needed(windows: Sequence[Window], *, fleet: Fleet, weights: Weights, config: Autoscaling) -> float | None:
    """Capacity that keeps pace with the load of the latest window: the median of the latest windows that tell, so that
    one odd window changes nothing. A starving trainer is believed by half at once.
    """
    latest = windows[-1]

    def of(window: Window) -> float:
        """Never more than twice what was there: one window says little about a fleet of another order."""
        had = fleet.capacity(window.ready, weights, policy=window.policy)
        scale = latest.load / window.load if window.load > 0 else 1.0
        return had * min(_MOST_FACTOR, 1 / window.kept_pace if window.kept_pace else _MOST_FACTOR) * scale

    telling = [window for window in windows if _tells(window, config)][-_DAMPED_OVER:]
    if not telling:
        return None
    need = median(map(of, telling))
    if telling[-1] is latest:
        return (need + of(latest)) / 2 if latest.wait > config.tau_high and of(latest) > need else need
    # It kept pace, so what was there is enough, and what was seen longer ago does not count against that.
    return min(need, fleet.capacity(latest.ready, weights, policy=latest.policy))


def growth_ahead(windows: Sequence[Window], *, startup_s: float) -> float:
    """By how much the load will have grown when pods asked for now are ready; 1 where that is sooner than trends."""
    latest = windows[-1]
    if startup_s <= latest.seconds / 2:
        return 1.0
    recent = [window for window in windows if window.load > 0][-_TREND_OVER:]
    if len(recent) < _DAMPED_OVER:
        return 1.0
    rates = [(after.load / before.load - 1) / max(1e-9, after.at - before.at) for before, after in pairwise(recent)]
    return min(_MOST_GROWTH_AHEAD, max(1.0, 1.0 + median(rates) * startup_s))


def _tells(window: Window, config: Autoscaling) -> bool:
    if any(count > 0 for count in window.ready.values()):
        return (
            window.wait > config.tau_high if window.kept_pace is None else not window.held_back(tau_low=config.tau_low)
        )
    return False


def _runs_dry(seen: Outlook, config: Autoscaling) -> bool:
    """Whether the buffer will be empty before pods that the next report asks for are ready."""
    spare = seen.spare_steps
    if spare is None:
        return seen.latest.wait > config.tau_low
    return spare < seen.steps_ahead * seen.waiting_ahead


def _affordable(seen: Outlook) -> float:
    """The share of the fleet that can be tried to do without: if all of it turns out to be needed, the buffer lasts
    until it is back.
    """
    spare = seen.spare_steps
    if spare is None or spare <= 0:
        return 0.0
    return min(_MOST_TRIED_LESS, spare / seen.steps_ahead)


def _in_buffer(seen: Outlook) -> str:
    held = seen.latest.steps_in_reserve
    return "" if held is None else f"; samples for {held:.1f} steps are in the buffer"


def _want(seen: Outlook, branch: Branch, *, capacity: float, reason: str, message: str) -> Want:
    latest = seen.latest
    return Want(
        policy=latest.policy, branch=branch, capacity=capacity, reason=reason, message=message, wait=latest.wait,
        at=latest.at,
    )  # fmt: skip
