"""What one policy's evidence asks of the fleet."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.fabric.wire.balance import Branch


@dataclass(frozen=True, kw_only=True)
class Want:
    policy: str
    branch: Branch
    capacity: float
    """The least that will do, over the pools that serve the policy."""
    reason: str
    """One CamelCase word."""
    message: str
    """One sentence with the numbers."""
    wait: float | None = None
    """Waiting fraction of the window it rests on."""
    at: float | None = None
    """The end of that window."""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) < 0.1 else f"{100 * share:.0f} %"
