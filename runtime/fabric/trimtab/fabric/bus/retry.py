"""Repeating a call that is safe to repeat, for as long as its deadline allows and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnavailable, StreamFull

Result = TypeVar("Result")

ATTEMPT_TIMEOUT_S = 2.0
RETRY_BACKOFF = FullJitter(base_s=0.05, cap_s=1.0)


def is_worth_repeating(error: BusError) -> bool:
    """A lost or unanswered call is; a refusal is not, and a full stream is for the caller to slow down for."""
    return isinstance(error, BusTimeout | BusUnavailable) and not isinstance(error, StreamFull)


async def until_deadline(
    attempt: Callable[[float], Awaitable[Result]],
    *,
    deadline_s: float,
    attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    backoff: FullJitter = RETRY_BACKOFF,
    clock: Callable[[], float] | None = None,
) -> Result:
    """Awaits `attempt(seconds_left_for_it)` until it succeeds; at the end raises what the last attempt raised, or the
    one before where the deadline has cut the last one off. The clock is the loop's unless one is given.
    """
    clock = clock or asyncio.get_running_loop().time
    end = clock() + deadline_s
    failures = 0
    earlier: BusError | None = None
    while True:
        try:
            return await attempt(max(0.001, min(attempt_timeout_s, end - clock())))
        except BusError as error:
            delay = backoff.delay_s(failures)
            failures += 1
            if not is_worth_repeating(error) or clock() + delay >= end:
                if isinstance(error, BusTimeout) and earlier is not None and clock() >= end:
                    raise earlier from error
                raise
            earlier = error
            await asyncio.sleep(delay)
