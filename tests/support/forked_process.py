"""A process forked from a template: it ends by itself, by SIGTERM or by SIGKILL, and says how."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.template_process import TemplateProcess


class ForkedProcess:
    """Its output goes to the log. `work` must be importable by name."""

    def __init__(self, template: TemplateProcess, log_file: Path, work: Callable[..., None], *arguments: Any) -> None:
        log_file.touch(mode=0o600)
        self._template = template
        self.pid = template.start(_logged, log_file, work, arguments)
        self._ending: int | None = None

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        if self._ending is None:
            self._ending = self._template.ended(self.pid)
        return None if self._ending is None else os.waitstatus_to_exitcode(self._ending)

    def kill(self) -> None:
        if self.ended() is None:
            self._ending = self._template.end(self.pid)

    def terminate(self, *, timeout_s: float) -> int:
        """SIGTERM, and the exit code."""
        if self.ended() is None:
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while (code := self.ended()) is None:
            assert time.monotonic() < deadline, f"process {self.pid} does not end"
            time.sleep(0.05)
        return code


def _logged(log_file: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    work(*arguments)
