"""What runs beside the training loop: torch computes in the main thread while an event loop talks to NATS and S3, sends
weights and checkpoints out, and repeats what must be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable
from trimtab.fabric.objects.errors import StoreTimeout, StoreUnavailable

_log = structlog.get_logger(__name__)
_STOP_TIMEOUT_S = 10.0
_BACKOFF = FullJitter(base_s=0.5, cap_s=5.0)
Result = TypeVar("Result")


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


class Outbox:
    """What leaves the trainer beside the next step: weights or checkpoints. One is under way at a time; a caller that
    finds it busy comes again later, with something newer. Training never waits for it.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._under_way: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Raises what the last one raised."""
        self.raise_failure()
        return self._under_way is not None

    def raise_failure(self) -> None:
        """Raises what the last one raised, once it has ended; does not wait for it."""
        if self._under_way is not None and self._under_way.done():
            self.flush()

    def send(self, work: Coroutine[Any, Any, None]) -> None:
        """Only when it is not busy."""
        self._under_way = self._background.start(work)

    def flush(self) -> None:
        """Wait until it is out."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()


async def persistently(
    attempt: Callable[[], Awaitable[Result]], *, what: str, deadline_s: float, backoff: FullJitter = _BACKOFF
) -> Result:
    """Repeat until it succeeds: a store or a broker that is away for a while delays a trainer and does not end it. Past
    the deadline, and for errors that time does not heal, the error is raised.
    """
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
