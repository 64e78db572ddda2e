"""How much capacity a policy needs, as far as its windows tell.

A window in which rollout did what it could measures it: capacity, times what was taken over what was made. One in which
rollout was held back only bounds it from above. What an old window measured is put on the load of today, and given up
when a later one got by with clearly less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from trimtab.operator.autoscale.fleet import Fleet, Weights
from trimtab.operator.autoscale.windows import DAMPED_OVER, Window

_LEAST_FOR_A_TREND = 3
_TREND_OVER = 6
_MOST_GROWTH_AHEAD = 1.5
# Where a trainer waits nearly all the time, how much more it needs cannot be told.
_MOST_FACTOR = 10.0
_MOST_SURPRISE = 2.0
# At a load of another order, a measurement is no more than a hint.
_MOST_SCALED = 4.0
# Two measurements of the same need may differ by this much.
_NOISE = 1.10
_SAME_LOAD = 0.1
# Engines with fewer requests answer each of them faster, but not that much faster.
OTHER_EPISODES = 3.0
# Of waiting beyond this only a part can come from pods that start.
_CLEARLY_STARVING = 0.4


@dataclass(frozen=True, kw_only=True)
class Need:
    measured: float | None
    """What keeps pace with the load of the latest window; None when no window that counts measures it."""
    of_this_load: bool
    """Whether that was measured at the load of today or a lesser one, so that less is known not to do."""
    enough: float | None
    """What the latest window shows to suffice, when rollout was held back in it."""


def need_of(windows: Sequence[Window], *, fleet: Fleet, weights: Weights, tau_low: float, tau_high: float) -> Need:
    """From the windows of one policy, oldest first."""
    load = windows[-1].load
    readings = [_reading(window, fleet=fleet, weights=weights, load=load) for window in windows]
    latest = readings[-1]
    telling: list[_Reading] = []
    for reading in readings:
        window = reading.window
        if not window.measures(tau_low=tau_low):
            suffices = _NOISE * reading.capacity * reading.today
            telling = [before for before in telling if before.window.settled and before.need <= suffices]
        elif reading.capacity > 0 and (window.settled or window.wait > _CLEARLY_STARVING):
            telling.append(reading)
    telling = [reading for reading in telling if not _outlived(reading, latest)][-DAMPED_OVER:]
    enough = None if latest.window.measures(tau_low=tau_low) else latest.capacity
    if not telling:
        return Need(measured=None, of_this_load=False, enough=enough)
    need = median(reading.need for reading in telling)
    if telling[-1] is latest and latest.window.wait > tau_high:
        # A starving trainer is worth less damping: what is new is believed by half at once.
        need = max(need, (need + min(latest.need, _MOST_SURPRISE * need)) / 2)
    return Need(measured=need, of_this_load=telling[-1].today >= 1 - _SAME_LOAD, enough=enough)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """A window, and what is worked out of it once."""

    window: Window
    capacity: float
    today: float
    """The load of the latest window over its own."""

    @cached_property
    def need(self) -> float:
        """What it measures, at the load of the latest window."""
        kept_pace = self.window.kept_pace
        return self.capacity * min(_MOST_FACTOR, 1 / kept_pace if kept_pace else _MOST_FACTOR) * self.today


def _reading(window: Window, *, fleet: Fleet, weights: Weights, load: float) -> _Reading:
    own = window.load
    today = min(_MOST_SCALED, max(1 / _MOST_SCALED, load / own)) if own > 0 and load > 0 else 1.0
    return _Reading(window=window, capacity=fleet.capacity(window.ready, weights), today=today)


def _outlived(before: _Reading, latest: _Reading) -> bool:
    """Whether episodes have become so much shorter since that its measurement is of another job: a tool that was slow
    is not slow any more. By Little's law their length is what is in the making over what is made.
    """
    then = _episode_length(before, busy=before.window.busy)
    now = _episode_length(latest, busy=latest.window.busiest)
    return then is not None and now is not None and now * OTHER_EPISODES < then


def _episode_length(reading: _Reading, *, busy: float | None) -> float | None:
    """In a unit of its own."""
    window = reading.window
    if busy is None or window.accepted <= 0 or window.seconds <= 0:
        return None
    return busy * reading.capacity * window.seconds / window.accepted


def growth_ahead(windows: Sequence[Window], *, startup_s: float) -> float:
    """The factor by which the load will have grown when pods asked for now are ready; 1 where they start sooner than a
    trend can be seen.
    """
    if startup_s <= windows[-1].seconds / 2:
        return 1.0
    recent = [window for window in windows if window.load > 0][-_TREND_OVER:]
    if len(recent) < _LEAST_FOR_A_TREND:
        return 1.0
    rates = [(after.load / before.load - 1) / max(1e-9, after.at - before.at) for before, after in pairwise(recent)]
    return min(_MOST_GROWTH_AHEAD, max(1.0, 1.0 + median(rates) * startup_s))
