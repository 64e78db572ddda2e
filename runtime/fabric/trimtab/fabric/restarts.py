"""When a process that ended may start again: one rule for servers, containers and whatever else is kept running.

Half of the wait is certain, so that what ends at once is not started without pause; the other half is random, so that
what ended together does not come back together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trimtab.fabric.backoff import FullJitter


@dataclass(frozen=True, kw_only=True)
class Again:
    """It may start again."""

    at: float
    """On the caller's clock."""
    crashes: int
    """Ends in a row that came too soon, this one included: what to tell the policy at the next end."""

    def wait_s(self, now: float) -> float:
        return max(0.0, self.at - now)


def _never(exit_code: int | None) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    backoff: FullJitter
    stable_s: float
    """An instance that lived so long has recovered from whatever ended the earlier ones."""
    gives_up: Callable[[int | None], bool] = _never
    """Whether an exit code says that another start would not help; None is the code of what could not be started."""

    def after(self, crashes: int, *, exit_code: int | None, lived_s: float, now: float) -> Again | None:
        """What to do about an end, when `crashes` came before it; None: leave it."""
        return None if self.gives_up(exit_code) else self.again(crashes, lived_s=lived_s, now=now)

    def again(self, crashes: int, *, lived_s: float, now: float) -> Again:
        """The same for what is never left."""
        counted = 1 if lived_s >= self.stable_s else crashes + 1
        return Again(at=now + self.delay_s(counted), crashes=counted)

    def delay_s(self, crashes: int) -> float:
        """After the first, second … end in a row."""
        attempt = max(0, crashes - 1)
        return (self.backoff.ceiling_s(attempt) + self.backoff.delay_s(attempt)) / 2
