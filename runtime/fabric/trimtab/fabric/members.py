"""Who is there: each pod puts a heartbeat under its own key, which expires; readers keep a table of the living."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, Removed
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.member import MemberHeartbeat

_log = structlog.get_logger(__name__)


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
    """The latest heartbeat of every member whose key has not expired."""

    def __init__(self) -> None:
        self._present: dict[str, MemberHeartbeat] = {}

    @property
    def present(self) -> list[MemberHeartbeat]:
        return [self._present[key] for key in sorted(self._present)]

    async def follow(self, members: KeyValue) -> None:
        async with KvWatch(members) as watch:
            async for change in watch:
                match change:
                    case Entry(key=key, value=value):
                        try:
                            self._present[key] = decode(value, MemberHeartbeat)
                        except WireError as error:
                            _log.warning("heartbeat_refused", key=key, reason=str(error))
                    case Removed(key=key):
                        self._present.pop(key, None)
