"""Blocking work beside the event loop, in a thread that may be left behind.

The threads of an executor are joined when the process ends. One that hangs in a user's code, or a library's, would keep
the pod from ending, and would take a thread that others wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_daemon_thread(work: Callable[[], Result], *, name: str) -> Result:
    """What `work` returns or raises. When the wait is cancelled, the thread goes on alone and its result is dropped."""
    loop = asyncio.get_running_loop()
    settled: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if settled.done():
            return
        if error is not None:
            settled.set_exception(error)
        else:
            settled.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Result | None = None
        failure: Exception | None = None
        try:
            result = work()
        except StopIteration as error:  # no future takes one
            failure = RuntimeError(f"{name} raised StopIteration: {error}")
        except Exception as error:  # noqa: BLE001 - it belongs to the task that awaits
            failure = error
        except SystemExit as error:  # ends the thread without a word, and the waiting task would wait for ever
            failure = RuntimeError(f"{name} raised {error!r}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task awaits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await settled
