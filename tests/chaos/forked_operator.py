"""The operator, forked from a process that has imported it already: fifty of them start in the time of ten."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos.template_process import TemplateProcess
from tests.cluster.operator.operator_process import OperatorProcess
from trimtab.operator.__main__ import main

_STOP_TIMEOUT_S = 20.0


def prepare() -> None:
    """This module's imports are all it takes."""


class ForkedOperator(OperatorProcess):
    def __init__(self, template: TemplateProcess, folder: Path, **known: Any) -> None:
        super().__init__(folder, **known)
        self._template = template
        self._pid = 0
        self._ending: int | None = None

    def start(self, *arguments: str) -> ForkedOperator:
        self.log_file.touch(mode=0o600)
        self._pid = self._template.start(_operate, self.environment, self.log_file, arguments)
        self._ending = None
        return self

    @property
    def pid(self) -> int:
        return self._pid

    def ended(self) -> int | None:
        if self._ending is None:
            self._ending = self._template.ended(self._pid)
        return None if self._ending is None else os.waitstatus_to_exitcode(self._ending)

    def kill(self) -> None:
        if self.ended() is None:
            self._ending = self._template.end(self._pid)

    def stop(self) -> int:
        if self.ended() is None:
            os.kill(self._pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while (code := self.ended()) is None:
            assert time.monotonic() < deadline, "the operator does not stop"
            time.sleep(0.05)
        return code


def _operate(environment: dict[str, str], log_file: Path, arguments: tuple[str, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    main(list(arguments), standalone_mode=False)
