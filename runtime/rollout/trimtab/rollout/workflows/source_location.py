"""Where in a user's code an episode failed: the file and line that they would open first."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from trimtab.rollout.workflows.errors import WorkflowHung

_MAX_CHARS = 500


class WorkflowSource:
    """The folder that a workflow's class comes from. What lies elsewhere is a library that it calls."""

    def __init__(self, workflow: object) -> None:
        self._run = getattr(workflow, "run", None)
        file = _source_file(type(workflow))
        self._folder = None if file is None else file.parent

    def location_of(self, error: BaseException) -> str:
        """The innermost call in that folder. An error that comes from what `run` returned has none there: then it is
        `run` itself. Empty where nothing is known of it.
        """
        return self.location_in(_calls(error))

    def location_in(self, calls: Sequence[FrameSummary]) -> str:
        """Of calls of which the innermost is the last."""
        own = [call for call in calls if self._is_own(call.filename)]
        if own:
            return self._named(own[-1].filename, own[-1].lineno, own[-1].name)
        code = getattr(inspect.unwrap(self._run), "__code__", None) if self._run is not None else None
        return "" if code is None else self._named(code.co_filename, code.co_firstlineno, code.co_name)

    def _is_own(self, filename: str) -> bool:
        return self._folder is not None and Path(filename).is_relative_to(self._folder)

    def _named(self, filename: str, line: int | None, name: str) -> str:
        file = Path(filename)
        if self._folder is not None and file.is_relative_to(self._folder):
            file = file.relative_to(self._folder)
        # Names of files may hold bytes that no message can carry.
        return f"{file}, line {line}, in {name}".encode("utf-8", "replace").decode("utf-8")[:_MAX_CHARS]


def waits_at(task: asyncio.Task[Any]) -> list[FrameSummary]:
    """The calls that a task which does not end is in, the innermost last, as far as it can be followed."""
    calls: list[FrameSummary] = []
    step: Any = task.get_coro()
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)
        if frame is not None:
            calls.append(FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
    return calls


def _calls(error: BaseException) -> Sequence[FrameSummary]:
    return error.waited_at if type(error) is WorkflowHung else traceback.extract_tb(error.__traceback__)


def _source_file(kind: type) -> Path | None:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return None
    return None if file is None else Path(file)
