"""Work beside the steps of a test. When it fails so does the test, instead of waiting for what cannot come any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """The work goes on inside, as this task, and is cancelled on the way out if it has not ended. Its failure
    interrupts what is inside, and is raised.
    """
    inside = asyncio.current_task()
    assert inside is not None
    left = interrupted = False

    def notice(ended: asyncio.Task[None]) -> None:
        nonlocal interrupted
        if not left and not ended.cancelled() and ended.exception() is not None:
            interrupted = True
            inside.cancel()

    task = asyncio.create_task(work)
    task.add_done_callback(notice)
    try:
        yield task
    finally:
        left = True
        if interrupted:
            inside.uncancel()
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
