"""Counts the deliveries of a task that ended in a hand-back.

The queue counts every delivery alike. A worker that drains, weights that are late and a stream that is full are not the
task's fault, and must not use up the attempts after which it is given up.
"""

from __future__ import annotations

import structlog

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusNotFound
from trimtab.fabric.bus.keyvalue import KeyValue

_log = structlog.get_logger(__name__)


class HandBacks:
    """By place in the queue, which is what deliveries are counted by. Only one worker has a task at a time; where a
    lease ran out there are two, and one count may be lost, which costs the task an attempt.
    """

    def __init__(self, bucket: KeyValue, *, deadline_s: float = 2.0) -> None:
        """Twice `deadline_s` fits into the time that a draining worker keeps for handing back."""
        self._bucket = bucket
        self._deadline_s = deadline_s

    async def add(self, delivery: Delivery) -> None:
        """A hand-back that cannot be counted counts as an attempt: whoever hands back may have no time to repeat it."""
        try:
            count = await self._count(delivery) + 1
            await self._bucket.put(str(delivery.sequence), str(count).encode(), deadline_s=self._deadline_s)
        except BusError as error:
            _log.warning("hand_back_not_counted", sequence=delivery.sequence, error=str(error))

    async def attempts(self, delivery: Delivery) -> int:
        """Deliveries up to this one that were not handed back. All of them where nobody can tell: a task is settled,
        too early if need be, rather than never.
        """
        try:
            return max(1, delivery.attempt - await self._count(delivery))
        except BusError as error:
            _log.warning("hand_backs_unknown", sequence=delivery.sequence, error=str(error))
            return delivery.attempt

    async def _count(self, delivery: Delivery) -> int:
        if delivery.attempt == 1:
            return 0
        try:
            entry = await self._bucket.get(str(delivery.sequence), deadline_s=self._deadline_s)
        except BusNotFound:
            return 0
        return int(entry.value) if entry.value.isdigit() else 0
