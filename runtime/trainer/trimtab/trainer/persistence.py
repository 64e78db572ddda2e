"""Writing what must be written: a store or a broker that is away for a while delays a trainer and does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.objects.errors import StoreTimeout, StoreUnavailable

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=0.5, cap_s=5.0)
Result = TypeVar("Result")


async def persistently(
    attempt: Callable[[], Awaitable[Result]], *, what: str, deadline_s: float, backoff: FullJitter = _BACKOFF
) -> Result:
    """Repeat until it succeeds. Past the deadline, and for errors that time does not heal, the error is raised."""
    clock = asyncio.get_running_loop().time
    end = clock() + deadline_s
    failures = 0
    while True:
        try:
            return await attempt()
        except (BusTimeout, BusUnavailable, StoreTimeout, StoreUnavailable) as error:
            delay = backoff.delay_s(failures)
            if clock() + delay >= end:
                raise
            _log.warning("write_repeated", what=what, error=str(error), delay_s=delay)
        await asyncio.sleep(delay)
        failures += 1
