"""The built-in engine as a child process that a test may kill and start again at the same address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from trimtab.embedded.ports import free_ports

_STOP_TIMEOUT_S = 15.0


class EngineProcess:
    def __init__(self, model: Path, folder: Path, *, max_running: int = 8, max_queued: int = 64) -> None:
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        self._command = [
            sys.executable, "-m", "trimtab.rollout.engines.builtin", f"--model-path={model}", f"--port={self._port}",
            f"--max-running-requests={max_running}", f"--max-queued-requests={max_queued}",
        ]  # fmt: skip
        self._log = folder / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_STOP_TIMEOUT_S)
