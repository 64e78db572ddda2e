"""What the API server refused, by object, and when it is asked again.

Many things wake an object: the echo of its own status, a report on the bus, another pod. None of them makes a refused
pod fit, so the time of the next attempt is kept here, beside the queue, and reconciles before it do all the rest. What
has changed since is not what was refused: a pod with another template is tried at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trimtab.fabric.backoff import FullJitter
from trimtab.operator.plan.actions import Action, StartPod

_BACKOFF = FullJitter(base_s=0.2, cap_s=60.0)

K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Objection:
    """Why what an object asks for cannot be done as it stands."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class _Refused:
    objection: Objection
    starts: frozenset[tuple[str, str, int]]
    times: int
    until: float


def retry_delay_s(times: int, *, backoff: FullJitter = _BACKOFF) -> float:
    """Before the attempt that follows this many refusals. Doubled each time, half of it by chance. At a minute it is
    the minute itself: the delays before have spread the objects already, and one that fits waits no longer than that.
    """
    attempt = max(0, times - 1)
    ceiling = backoff.ceiling_s(attempt)
    return ceiling if ceiling == backoff.cap_s else (ceiling + backoff.delay_s(attempt)) / 2


class Objections(Generic[K]):
    def __init__(self, *, delay_s: Callable[[int], float] = retry_delay_s) -> None:
        self._delay_s = delay_s
        self._refused: dict[K, _Refused] = {}

    def of(self, key: K) -> Objection | None:
        known = self._refused.get(key)
        return None if known is None else known.objection

    def allowed(self, key: K, actions: Sequence[Action], *, now: float) -> tuple[list[Action], float | None]:
        """Those that may be done now, and when the others may; None when there are no others."""
        known = self._refused.get(key)
        if known is None or now >= known.until:
            return list(actions), None
        kept = [action for action in actions if _identity(action) not in known.starts]
        return kept, None if len(kept) == len(actions) else known.until

    def record(self, key: K, objection: Objection, tried: Sequence[Action], *, now: float) -> float:
        """When to try again. Starts that join others that wait already are tried together with them."""
        known = self._refused.get(key)
        starts = frozenset(identity for action in tried if (identity := _identity(action)) is not None)
        if known is not None and now < known.until:
            times, until, starts = known.times, known.until, starts | known.starts
        else:
            times = 1 if known is None else known.times + 1
            until = now + self._delay_s(times)
        self._refused[key] = _Refused(objection=objection, starts=starts, times=times, until=until)
        return until

    def withdraw(self, key: K) -> bool:
        """Nothing is refused any more. Whether something was."""
        return self._refused.pop(key, None) is not None


def _identity(action: Action) -> tuple[str, str, int] | None:
    return (action.pod.name, action.pod.revision, action.pod.attempt) if isinstance(action, StartPod) else None
