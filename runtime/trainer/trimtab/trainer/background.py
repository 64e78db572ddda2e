"""The event loop beside the training loop: torch computes in the main thread while this one talks to NATS and S3."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

Result = TypeVar("Result")
_STOP_TIMEOUT_S = 10.0


class Background:
    """Runs coroutines in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(TimeoutError):
            self.start(_cancel_others()).result(_STOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin, and give something to wait on."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the result. Deadlines are the coroutine's own."""
        return self.start(work).result()


async def _cancel_others() -> None:
    """What was begun and not waited for ends here, and not when the interpreter collects it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
