"""Runs something in a child process that dies by SIGKILL at a chosen line: no cleanup runs, as when a pod is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from trimtab.weights import apply

_PACKAGE = str(Path(apply.__file__).parent)


def dies_at_line(action: Callable[[], None], line: int, *, after: Callable[[], None] = lambda: None) -> bool:
    """Whether the child was killed before the action executed its `line`-th line of the package.

    False: it finished sooner. Lines of what the child does first, `after`, do not count.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            after()
            _arm(line)
            action()
            status = 0
        finally:
            os._exit(status)
    _, ending = os.waitpid(child, 0)
    if os.WIFSIGNALED(ending):
        assert os.WTERMSIG(ending) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(ending) == 0, "the child failed; its traceback is above"
    return False


def _arm(line: int) -> None:
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
