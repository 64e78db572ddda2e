"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

_PATIENCE = 4.0
"""Times are for a machine at rest. Two tests share it, and others may be on it; a wait that succeeds costs nothing."""


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float, interval_s: float = 0.05
) -> None:
    """Return once the condition holds; fail the test when it does not within the time, with patience."""
    allowed_s = _PATIENCE * timeout_s
    deadline = time.monotonic() + allowed_s
    while True:
        result = condition()
        if await result if inspect.isawaitable(result) else result:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {allowed_s} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(interval_s)
