"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float, interval_s: float = 0.05
) -> None:
    """Return once the condition holds; fail the test when it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if await result if inspect.isawaitable(result) else result:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(interval_s)
