"""Whether a job's streams have room for more, judged from what servers and disks say. Where they have none, no new
tasks are admitted, so that what is left serves the ledger and the episodes under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.conditions import ConditionType
from trimtab.operator.conditions import Statement

_SHORT_ABOVE = 0.85
_ENOUGH_BELOW = 0.75
_ROOM = "Room"


@dataclass(frozen=True, kw_only=True)
class Filling:
    """Of something that can be full."""

    what: str
    """As the message names it."""
    reason: str
    used: int
    limit: int
    fix: str

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Room:
    """`shortage` says why there is none, None that there is; `reason` says the same in one word."""

    reason: str = _ROOM
    shortage: str | None = None

    def statement(self) -> Statement:
        return Statement(
            type=ConditionType.HAS_ROOM,
            holds=self.shortage is None,
            reason=self.reason,
            message=self.shortage or "",
        )


def judged(fillings: Sequence[Filling], *, before: Room | None) -> Room:
    """The fullest decides. What is short stays short until it is a good deal emptier: admission would flutter."""
    if not fillings:
        return Room()
    fullest = max(fillings, key=lambda filling: filling.share)
    was_short = before is not None and before.shortage is not None
    if fullest.share <= (_ENOUGH_BELOW if was_short else _SHORT_ABOVE):
        return Room()
    return Room(
        reason=fullest.reason,
        shortage=f"{fullest.what}: {round(100 * fullest.share)}% of {size_text(fullest.limit)} are in use, no new "
        f"tasks are admitted; {fullest.fix}",
    )


def size_text(size: int) -> str:
    """As people read it: 1.5 GiB."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}"
