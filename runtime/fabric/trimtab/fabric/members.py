"""Who is there: each pod puts a heartbeat under its own key, which expires; readers keep a table of the living."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import Change, KvWatch, Removed
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.member import MemberHeartbeat, State

_log = structlog.get_logger(__name__)
# Above one, so that a key which the server still has is not gone here, and neither is everybody at a short outage.
_PATIENCE = 1.5


async def beat(members: KeyValue, heartbeat: Callable[[], MemberHeartbeat], *, every_s: float) -> None:
    """Put a heartbeat again and again. A broker that is away is no reason to die: the key expires, and comes back."""
    while True:
        sign = heartbeat()
        try:
            await members.put(escape_token(sign.member_id), encode(sign), deadline_s=every_s)
        except BusError as error:
            _log.warning("heartbeat_not_sent", error=str(error))
        await asyncio.sleep(every_s)


class MemberTable:
    """The latest heartbeat of every member that is alive. A key expires without a word: the table sees for itself that
    a heartbeat is old.
    """

    def __init__(self, *, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._present: dict[str, tuple[float, MemberHeartbeat]] = {}
        self._ready_s: dict[str, float] = {}

    def ready_seconds(self) -> dict[str, float]:
        """By member that is alive, how long it has been ready since it came; windows take differences."""
        now, living = self._clock(), self.present
        self._ready_s = {key: seconds for key, seconds in self._ready_s.items() if key in self._present}
        return {
            member.member_id: self._ready_s.get(key, 0.0) + self._ready_since_last(key, now)
            for key, member in zip(sorted(self._present), living, strict=True)
        }

    @property
    def present(self) -> list[MemberHeartbeat]:
        oldest = self._clock() - _PATIENCE * self._ttl_s
        self._present = {key: seen for key, seen in self._present.items() if seen[0] >= oldest}
        return [self._present[key][1] for key in sorted(self._present)]

    async def follow(self, members: KeyValue) -> None:
        async with KvWatch(members) as watch:
            async for change in watch:
                self.note(change)

    def note(self, change: Change) -> None:
        match change:
            case Entry(key=key, value=value):
                try:
                    heartbeat = decode(value, MemberHeartbeat)
                except WireError as error:
                    _log.warning("heartbeat_refused", key=key, reason=str(error))
                    return
                now = self._clock()
                self._ready_s[key] = self._ready_s.get(key, 0.0) + self._ready_since_last(key, now)
                self._present[key] = (now, heartbeat)
            case Removed(key=key):
                self._present.pop(key, None)
                self._ready_s.pop(key, None)

    def _ready_since_last(self, key: str, now: float) -> float:
        """A heartbeat speaks for the time until its key would expire, and no longer."""
        if key not in self._present:
            return 0.0
        at, heartbeat = self._present[key]
        return min(now - at, self._ttl_s) if heartbeat.state is State.READY else 0.0
