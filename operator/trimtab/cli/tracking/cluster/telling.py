"""The processes that tell trackers, one for each: a library that hangs or dies takes neither the others nor the
listening with it. Each has its own tracker's key, and no other's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from trimtab.api.tracking import KEY_VARIABLES, TrackerType
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.restarts import RestartPolicy

_log = structlog.get_logger(__name__)
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=2.0, cap_s=120.0), stable_s=60.0)
_OURS = "TRIMTAB_"


class Telling:
    """Of one tracker: its process, which is started again when it ends by itself."""

    def __init__(self, tracker: TrackerType, *, job_file: Path, folder: Path, patience_s: float) -> None:
        self.tracker = tracker
        self._once = [
            *(sys.executable, "-m", "trimtab.cli.main", "track", str(job_file)),
            *("--state-folder", str(folder), "--only", tracker),
        ]
        self._command = [*self._once, "--follow", "--patience", f"{patience_s:g}"]
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = asyncio.Event()
        self.trouble: str | None = "is starting"

    async def run(self) -> None:
        """Until `stop`."""
        crashes = 0
        while True:
            began = time.monotonic()
            self._process = await self._started(self._command)
            self.trouble = None
            code = await self._process.wait()
            if self._stopped.is_set():
                return
            self.trouble = f"what tells {self.tracker} ended with {code}: see the log"
            _log.warning("teller_ended", tracker=self.tracker, exit_code=code)
            now = time.monotonic()
            again = _RESTARTS.again(crashes, lived_s=now - began, now=now)
            crashes = again.crashes
            await asyncio.sleep(again.wait_s(now))

    async def stop(self, *, within_s: float) -> bool:
        """Has it tell what is left; whether all was told in time."""
        self._stopped.set()
        try:
            async with asyncio.timeout(within_s):
                if self._process is not None and await _ended(self._process) == 0:
                    return True
                # It had died, or was only starting, and knew of no signal yet.
                self._process = await self._started(self._once)
                return await self._process.wait() == 0
        except TimeoutError:
            return False
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def _started(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command, cwd=self._folder, env=environment_of(self.tracker, os.environ)
        )


async def _ended(process: asyncio.subprocess.Process) -> int:
    if process.returncode is None:
        process.terminate()
    return await process.wait()


def environment_of(tracker: TrackerType, environment: Mapping[str, str]) -> dict[str, str]:
    """Ours without the keys of others, and without what the pod itself dials with."""
    others = {variable for type_, variable in KEY_VARIABLES.items() if type_ != tracker}
    return {name: value for name, value in environment.items() if name not in others and not name.startswith(_OURS)}
