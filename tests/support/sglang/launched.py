"""The launcher of SGLang as a child process, as a rollout pod runs it, and what is left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import psutil

from tests.support.polling import eventually
from tests.support.processes import runs
from trimtab.embedded.ports import free_ports

START_S = 400.0
_STOP_S = 40.0


class LaunchedSGLang:
    """Started on construction; `url` answers once `wait_ready` has returned."""

    def __init__(
        self,
        model: Path,
        *,
        interpreter: Path,
        folder: Path,
        options: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`options` are the launcher's own, `arguments` SGLang's."""
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "sglang.log"
        command = [
            sys.executable, "-m", "trimtab.rollout.engines.sglang", f"--model-path={model}", f"--port={port}",
            f"--interpreter={interpreter}", f"--startup-timeout-seconds={START_S}", *options, "--", *arguments,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            whole = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | dict(environment or {})
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=whole)

    async def wait_ready(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:

            async def ready() -> bool:
                assert self.process.poll() is None, self.log.read_text()[-4000:]
                try:
                    async with session.get(self.url + "/health") as response:
                        return response.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    return False

            await eventually(ready, timeout_s=START_S, interval_s=0.5)

    def family(self) -> list[psutil.Process]:
        """SGLang's processes: the server, its scheduler, its detokenizer and whatever they started."""
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def scheduler(self) -> psutil.Process | None:
        return next((process for process in self.family() if "sglang::scheduler" in _command(process)), None)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)


def _command(process: psutil.Process) -> str:
    """Empty for one that has ended: some end while others are looked at."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return list(filter(runs, processes))


def wait_gone(processes: list[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Those that are still there after so long."""
    deadline = time.monotonic() + timeout_s
    while (left := running(processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
