"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")

_PATIENCE = 10.0
"""Times are for a machine at rest. Three tests share it, with others perhaps; a wait that succeeds costs nothing."""
_LONGEST_S = 600.0
"""Short of the time after which pytest ends a test and says less about it."""


def patiently(timeout_s: float) -> asyncio.Timeout:
    """A limit to what happens within, for tests that would otherwise hang when it does not."""
    return asyncio.timeout(_with_patience(timeout_s))


async def within(awaitable: Awaitable[_T], timeout_s: float) -> _T:
    """What is awaited, or a failure when it does not come."""
    return await asyncio.wait_for(awaitable, _with_patience(timeout_s))


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]],
    *,
    timeout_s: float,
    interval_s: float = 0.05,
    ended: Callable[[], int | None] = lambda: None,
) -> None:
    """Return once the condition holds; fail the test when it does not within the time, with patience.

    `ended` says the exit code of the process that is to bring it about (`process.poll`), if there is no more hope.
    """
    allowed_s = _with_patience(timeout_s)
    deadline = time.monotonic() + allowed_s
    while True:
        code = ended()
        result = condition()
        if await result if inspect.isawaitable(result) else result:
            return
        assert code is None, f"ended with {code} before it held: {inspect.getsource(condition).strip()}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {allowed_s} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(interval_s)


def _with_patience(timeout_s: float) -> float:
    return min(_PATIENCE * timeout_s, _LONGEST_S)
