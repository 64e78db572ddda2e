"""Keeps the code of users from taking the worker with it: what it raises is caught, and what does not end is left.

Three things get past an ordinary `except Exception` under a timeout. SystemExit and KeyboardInterrupt, raised in any
task, end the event loop. A CancelledError that was not sent from outside looks like a worker that is told to stop. And
code that swallows a cancellation goes on for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from trimtab.rollout.workflows.errors import WorkflowError, WorkflowHung
from trimtab.rollout.workflows.source_location import waits_at

_log = structlog.get_logger(__name__)
_contained: contextvars.ContextVar[bool] = contextvars.ContextVar("contained", default=False)

Result = TypeVar("Result")


class WorkflowExited(WorkflowError):
    """Something called exit()."""

    kind = "workflow-exited"


class WorkflowCancelled(WorkflowError):
    """A task of the workflow's was cancelled by the workflow itself, and it waited for the result."""

    kind = "workflow-cancelled"


class Containment:
    """Runs coroutines that may do anything. `left_behind` are those that did not end when they were told to.

    A workflow that is cancelled has `patience_s` for clean-up. A worker that drains has five seconds for handing back.
    """

    def __init__(self, *, patience_s: float = 2.0) -> None:
        self._patience_s = patience_s
        self.left_behind: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Result], *, name: str, timeout_s: float) -> Result:
        """What the work returns or raises. Raises a WorkflowError for an exit, a hang, a cancellation of its own."""
        task = asyncio.create_task(_marked(work), name=name)
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await self._end(task)
            raise
        if not task.done():
            waited_at = waits_at(task)
            await self._end(task)
            raise WorkflowHung(f"not finished within {timeout_s:g} s", waited_at)
        if task.cancelled():
            raise WorkflowCancelled("it waited for a task of its own that was cancelled, and did not catch that")
        return task.result()

    async def _end(self, task: asyncio.Task[Any]) -> None:
        self.left_behind.add(task)
        task.add_done_callback(self._ended)
        task.cancel()
        await asyncio.wait({task}, timeout=self._patience_s)
        if not task.done():
            _log.error("workflow_ignores_cancellation", task=task.get_name(), left_behind=len(self.left_behind))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # what it raised is of no use any more


def contained_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """A task factory for the event loop: tasks that a workflow begins cannot end the process either."""
    return asyncio.Task(_without_exit(work) if _contained.get() else work, loop=loop, **options)


async def _marked(work: Coroutine[Any, Any, Result]) -> Result:
    # A task has a context of its own, which the tasks that it begins inherit.
    _contained.set(True)
    return await _without_exit(work)


async def _without_exit(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await work
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt, and whatever users derive from it
        raise WorkflowExited(f"the workflow raised {error!r}; return an Episode or raise an Exception") from None
