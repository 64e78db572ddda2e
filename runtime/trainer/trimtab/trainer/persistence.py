"""Writing what must be written: a store or a broker that is away for a while delays a trainer and does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.objects.errors import StoreTimeout, StoreUnavailable

_log = structlog.get_logger(__name__)
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 5.0
Result = TypeVar("Result")


async def persistently(
    attempt: Callable[[], Awaitable[Result]], *, what: str, deadline_s: float, first_delay_s: float = _FIRST_DELAY_S
) -> Result:
    """Repeat until it succeeds. Past the deadline, and for errors that time does not heal, the error is raised."""
    clock = asyncio.get_running_loop().time
    end = clock() + deadline_s
    delay = first_delay_s
    while True:
        try:
            return await attempt()
        except (BusTimeout, BusUnavailable, StoreTimeout, StoreUnavailable) as error:
            if clock() + delay >= end:
                raise
            _log.warning("write_repeated", what=what, error=str(error), delay_s=delay)
        await asyncio.sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY_S)
