"""The built-in engine as a process that a test may kill and start again at the same address.

It is forked from one that has imported it already, as importing torch takes longer than most of what is tested.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import transformers

from tests.support.forked_process import ForkedProcess
from tests.support.polling import eventually
from tests.support.template_process import TemplateProcess, template_process
from trimtab.embedded.ports import free_ports
from trimtab.rollout.engines.builtin.__main__ import main
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineError

_STOP_TIMEOUT_S = 120.0


class EngineProcess:
    def __init__(
        self,
        model: Path,
        folder: Path,
        *,
        max_running: int = 8,
        max_queued: int = 64,
        arguments: tuple[str, ...] = (),
    ) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = (
            f"--model-path={model}", f"--port={port}",
            f"--max-running-requests={max_running}", f"--max-queued-requests={max_queued}",
            *arguments,
        )  # fmt: skip
        self._log_file = folder / "engine.log"
        self._forked: ForkedProcess | None = None

    def start(self) -> None:
        self._forked = ForkedProcess(_template(), self._log_file, _serve, self._arguments)

    async def serves(self) -> None:
        """Returns once it does; fails when it has ended instead."""
        async with EngineClient(self.url, request_timeout_s=60.0) as client:

            async def healthy() -> bool:
                code = self.ended()
                assert code is None, f"the engine ended with {code}: {self._log_file.read_text()[-4000:]}"
                try:
                    await client.check_health(timeout_s=60.0)
                except EngineError:
                    return False
                return True

            await eventually(healthy, timeout_s=60.0)

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        assert self._forked is not None
        return self._forked.ended()

    def kill(self) -> None:
        assert self._forked is not None
        self._forked.kill()

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._forked is not None
        return self._forked.terminate(timeout_s=_STOP_TIMEOUT_S)


@cache
def _template() -> TemplateProcess:
    """One for all tests of this process. It ends with it, and so do its engines."""
    living = ExitStack()
    atexit.register(living.close)
    return living.enter_context(template_process(_prepare))


def _prepare() -> None:
    """This module's imports, and what transformers imports when a model's configuration is first read."""
    transformers.LlamaConfig()


def _serve(arguments: tuple[str, ...]) -> None:
    main(list(arguments), standalone_mode=False)
