"""What the dataflow says of itself every second, from its first moment on: a recovery may take its time, and the
operator replaces a dataflow of which it hears nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.members import beat
from trimtab.fabric.wire.member import ANCHORED_ANEW, GIVEN_UP_GROUPS, MemberHeartbeat, Role, State

_EVERY_S = 1.0


@dataclass
class SignsOfLife:
    """Of one process."""

    member_id: str
    job: str
    clock: Callable[[], float]
    ledger: Ledger | None = None
    """Once it is recovered."""
    started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    def heartbeat(self) -> MemberHeartbeat:
        return MemberHeartbeat(
            member_id=self.member_id,
            job=self.job,
            role=Role.DATAFLOW,
            state=State.STARTING if self.ledger is None else State.READY,
            failures={} if self.ledger is None else _failures(self.ledger),
            started_at=self.started_at,
            sent_at=self.clock(),
        )

    async def during(self, work: Coroutine[Any, Any, None], members: KeyValue) -> None:
        """Give them until the work ends, and end as it does."""
        working = asyncio.create_task(work)
        beating = asyncio.create_task(beat(members, self.heartbeat, every_s=_EVERY_S))
        try:
            await asyncio.wait({working, beating}, return_when=asyncio.FIRST_COMPLETED)
            (working if working.done() else beating).result()
        finally:
            working.cancel()
            beating.cancel()
            await asyncio.gather(working, beating, return_exceptions=True)


def _failures(ledger: Ledger) -> dict[str, int]:
    if not ledger.anchored_anew:
        return {}
    return {ANCHORED_ANEW: ledger.anchored_anew, GIVEN_UP_GROUPS: ledger.given_up_groups}
