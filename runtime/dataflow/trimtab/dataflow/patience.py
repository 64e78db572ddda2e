"""A loop that publishes goes on where the bus comes back or a full stream has room again: it begins anew, and loses
nothing by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import StreamSpec
from trimtab.fabric.restarts import RestartPolicy

_log = structlog.get_logger(__name__)
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=1.0, cap_s=15.0), stable_s=60.0)
_DECLARE_DEADLINE_S = 30.0


async def patiently(loop: Callable[[], Awaitable[None]], bus: Bus, stream: StreamSpec) -> None:
    """Runs `loop`, which publishes to `stream`, until it returns or fails otherwise. A stream that somebody has deleted
    is no matter of patience: it is made again, or its absence raised."""
    clock = asyncio.get_running_loop().time
    crashes = 0
    while True:
        began = clock()
        try:
            return await loop()
        except (BusTimeout, BusUnavailable) as error:
            now = clock()
            again = _RESTARTS.again(crashes, lived_s=now - began, now=now)
            crashes = again.crashes
            _log.warning("not_published", stream=stream.name, error=str(error), again_in_s=round(again.wait_s(now), 1))
            await asyncio.sleep(again.wait_s(now))
            try:
                await declare_stream(bus, stream, deadline_s=_DECLARE_DEADLINE_S, may_change=False)
            except (BusTimeout, BusUnavailable):
                continue
