"""The operator, forked from a process that has imported it already: fifty of them start in the time of ten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.forked_process import ForkedProcess
from tests.support.operator.operator_process import OperatorProcess
from tests.support.template_process import TemplateProcess
from trimtab.operator.__main__ import main

_STOP_TIMEOUT_S = 120.0


def prepare() -> None:
    """This module's imports are all it takes."""


class ForkedOperator(OperatorProcess):
    def __init__(self, template: TemplateProcess, folder: Path, **known: Any) -> None:
        super().__init__(folder, **known)
        self._template = template
        self._forked: ForkedProcess | None = None

    def start(self, *arguments: str) -> ForkedOperator:
        self._forked = ForkedProcess(self._template, self.log_file, _operate, self.environment, arguments)
        return self

    @property
    def _running(self) -> ForkedProcess:
        assert self._forked is not None, "it was never started"
        return self._forked

    @property
    def pid(self) -> int:
        return self._running.pid

    def ended(self) -> int | None:
        return self._running.ended()

    def kill(self) -> None:
        self._running.kill()

    def stop(self) -> int:
        return self._running.terminate(timeout_s=_STOP_TIMEOUT_S)


def _operate(environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    main(list(arguments), standalone_mode=False)
