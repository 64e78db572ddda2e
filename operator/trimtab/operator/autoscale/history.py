"""What the autoscaler remembers from one decision to the next.

It lives in memory. A restart keeps what the job's status says, the last change and the cool-down; evidence comes again
with the next reports, and until a stabilisation window has been watched as a whole nothing shrinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trimtab.api.autoscaling import Autoscaling, AutoscalingStatus
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.operator.autoscale.fleet import Fleet, Targets
from trimtab.operator.autoscale.windows import DAMPED_OVER, Window, window_of

_MOST_WINDOWS = 16
_MOST_DECISIONS = 20
_MOST_SIZES = 256
# Of a window that the operator saw less of than this, the report itself knows better how many were ready.
_SEEN_ENOUGH = 0.5


@dataclass(frozen=True, kw_only=True)
class Size:
    """Replicas that took tasks from a moment on, by pool."""

    since: float
    ready: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was recommended at a moment, within the bounds."""

    at: float
    targets: Targets


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the fleet's size."""

    at: float
    added: int | None
    """None, like `removed`, for a change before a restart, whose size is not recorded."""
    removed: int | None


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """A pool that was given another size by a person or another program."""

    at: float
    pool: str
    before: int
    after: int


@dataclass(frozen=True, kw_only=True)
class PastDecision:
    at: float
    maintainer: str
    current: int
    target: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class History:
    since: float
    """When the watching began."""
    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    """By policy, oldest first."""
    sizes: tuple[Size, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    changes: tuple[Change, ...] = ()
    targets: Targets = field(default_factory=dict)
    """What we last set, by pool."""
    by_hand: ByHand | None = None
    """The latest, until we have changed the fleet ourselves."""
    cooldown_until: float = 0.0
    decisions: tuple[PastDecision, ...] = ()
    """Newest first. One that says what the one before said is not among them."""
    stages: History | None = None
    """Of the pools that serve stages alone, which are decided about by themselves."""

    @property
    def last_change(self) -> float | None:
        return self.changes[-1].at if self.changes else None


def restored(status: AutoscalingStatus | None, *, now: float) -> History:
    """After a restart, or at the beginning of a job."""
    if status is None:
        return History(since=now)
    changed, decided_at = status.last_scale_time, status.last_decision_time
    return History(
        since=now,
        changes=() if changed is None else (Change(at=changed.timestamp(), added=None, removed=None),),
        targets={pool.name: pool.target for pool in status.pools} if status.mode == "Auto" else {},
        cooldown_until=0.0 if status.cooldown_until is None else status.cooldown_until.timestamp(),
        decisions=() if decided_at is None else (_past(status, at=decided_at.timestamp()),),
    )


def remembering(history: History, decision: AutoscalingStatus, *, now: float) -> History:
    """The history with a decision that has been made."""
    past = _past(decision, at=now)
    if history.decisions and replace(history.decisions[0], at=now) == past:
        return history
    return replace(history, decisions=(past, *history.decisions)[:_MOST_DECISIONS])


def _past(decision: AutoscalingStatus, *, at: float) -> PastDecision:
    return PastDecision(
        at=at,
        maintainer=decision.maintainer,
        current=decision.current,
        target=decision.bounded,
        reason=decision.reason,
    )


def observed(
    history: History, *, config: Autoscaling, fleet: Fleet, reports: Iterable[BalanceReport], now: float
) -> History:
    """The history with what there is to see now: sizes, new reports, and what others did to the pools."""
    sizes = history.sizes
    if not sizes or sizes[-1].ready != fleet.ready:
        sizes = (*sizes, Size(since=now, ready=fleet.ready))[-_MOST_SIZES:]
    windows = dict(history.windows)
    for report in reports:
        known = windows.get(report.policy, ())
        if not known or report.at > known[-1].at:
            window = window_of(
                report,
                ready=_ready_in(sizes, report),
                settled=_settled(sizes, report),
                before=known[-1] if known else None,
            )
            windows[report.policy] = _kept((*known, window), tau_low=config.tau_low)
    return _with_others_doings(replace(history, sizes=sizes, windows=windows), config=config, fleet=fleet, now=now)


def decided(
    history: History, *, config: Autoscaling, fleet: Fleet, wanted: Targets, targets: Targets, now: float
) -> History:
    """The history after a decision. In DryRun nothing has changed, so nothing cools down."""
    keep = max(config.scale_up.stabilization_seconds, config.scale_down.stabilization_seconds)
    history = replace(
        history, wanted=_still_counting((*history.wanted, Wanted(at=now, targets=dict(wanted))), now - keep)
    )
    if config.mode != "Auto":
        return replace(history, targets={})
    moved = _difference(fleet.sizes, targets)
    history = replace(history, targets=dict(targets))
    if moved == (0, 0):
        return history
    return replace(_changed(history, *moved, config=config, now=now), by_hand=None)


def _ready_in(sizes: Sequence[Size], report: BalanceReport) -> dict[str, float] | None:
    return mean_ready(sizes, start=report.at - report.wall_seconds, end=report.at)


def _settled(sizes: Sequence[Size], report: BalanceReport) -> bool:
    """The first size is what we found, and no change."""
    return not any(report.at - report.wall_seconds < size.since <= report.at for size in sizes[1:])


def mean_ready(sizes: Sequence[Size], *, start: float, end: float) -> dict[str, float] | None:
    """Replicas by pool, averaged over a time; None when most of it was not watched."""
    if end <= start or not sizes:
        return None
    spans = [
        (size, max(size.since, start), min(end, following.since if following else end))
        for size, following in zip(sizes, (*sizes[1:], None), strict=True)
    ]
    spans = [(size, begin, until) for size, begin, until in spans if until > begin]
    watched = sum(until - begin for _, begin, until in spans)
    if watched < _SEEN_ENOUGH * (end - start):
        return None
    pools = {pool for size, _, _ in spans for pool in size.ready}
    return {
        pool: sum(size.ready.get(pool, 0) * (until - begin) for size, begin, until in spans) / watched for pool in pools
    }


def _still_counting(wanted: tuple[Wanted, ...], since: float) -> tuple[Wanted, ...]:
    """Those after a moment, and the one that was in force at it. Of equal ones in a row the first will do."""
    later = [one for one in wanted if one.at > since]
    kept = [*wanted[: len(wanted) - len(later)][-1:], *later]
    return tuple(one for number, one in enumerate(kept) if number == 0 or one.targets != kept[number - 1].targets)


def _kept(windows: tuple[Window, ...], *, tau_low: float) -> tuple[Window, ...]:
    """The newest, and of the older ones the last that measure: in a fleet that suffices, none does for a long time."""
    old, new = windows[:-_MOST_WINDOWS], windows[-_MOST_WINDOWS:]
    telling = [window for window in old if window.settled and window.measures(tau_low=tau_low)]
    return (*telling[-DAMPED_OVER:], *new)


def _with_others_doings(history: History, *, config: Autoscaling, fleet: Fleet, now: float) -> History:
    for name, size in fleet.sizes.items():
        ours = history.targets.get(name, size)
        if ours != size:
            history = _changed(history, max(0, size - ours), max(0, ours - size), config=config, now=now)
            history = replace(
                history,
                by_hand=ByHand(at=now, pool=name, before=ours, after=size),
                targets={**history.targets, name: size},
            )
    return history


def _changed(history: History, added: int, removed: int, *, config: Autoscaling, now: float) -> History:
    keep = now - max(config.scale_up.period_seconds, config.scale_down.period_seconds)
    recent = tuple(change for change in history.changes if change.at > keep)
    return replace(
        history,
        changes=(*recent, Change(at=now, added=added, removed=removed)),
        cooldown_until=now + config.cooldown_seconds,
    )


def _difference(before: Targets, after: Targets) -> tuple[int, int]:
    """Replicas added and removed, summed over the pools."""
    steps = [after.get(pool, size) - size for pool, size in before.items()]
    return sum(max(0, step) for step in steps), sum(max(0, -step) for step in steps)
