"""What the loss of a server's power, or of its disk, would cost a job, as its streams and servers are set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trimtab.api.conditions import ConditionType
from trimtab.operator.conditions import Statement

_MANY = 3

SyncInterval = float | Literal["always"]
"""Seconds after which a NATS server forces what it has acknowledged onto its disk; `always`: before it does."""


@dataclass(frozen=True, kw_only=True)
class Durability:
    """`sync` is None where it is not known."""

    replicas: int
    """Of the ledger or the trajectories, whichever has fewer."""
    sync: SyncInterval | None = None

    def statement(self) -> Statement:
        """True where the loss of one server's power costs nothing that was acknowledged."""
        if self.replicas >= _MANY:
            return self._said(
                True,
                "Replicated",
                f"ledger and trajectories are on {self.replicas} servers: the loss of one, with its disk, costs"
                f" nothing; when all lose their power at once, {self._cost()}",
            )
        alone = "ledger and trajectories are on one server: the loss of its disk costs them, and "
        if self.sync == "always":
            return self._said(True, "Synced", f"{alone}a loss of power costs nothing that was acknowledged")
        holds = None if self.sync is None else False
        reason = "SyncUnknown" if self.sync is None else "SyncedLater"
        return self._said(
            holds,
            reason,
            f"{alone}at a loss of power {self._cost()}; set sync_interval: always on the NATS server, or"
            " spec.streams.replicas: 3 where there are three",
        )

    def _cost(self) -> str:
        if self.sync == "always":
            return "nothing that was acknowledged is lost"
        if self.sync is None:
            return "what was acknowledged within the server's sync_interval may be lost, which is not known here"
        return f"what was acknowledged in the last {self.sync:g} s may be lost"

    def _said(self, holds: bool | None, reason: str, message: str) -> Statement:
        return Statement(type=ConditionType.DURABLE, holds=holds, reason=reason, message=message)
