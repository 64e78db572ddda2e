"""One incarnation of SGLang: server, schedulers and detokenizer, in a process group that ends as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from functools import partial
from typing import Self

from trimtab.fabric.parent_death import die_with
from trimtab.rollout.engines.sglang.command import ServerCommand


class ServerProcess:
    """A running SGLang, whose output goes where ours goes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: ServerCommand) -> Self:
        process = await asyncio.create_subprocess_exec(
            *command.arguments,
            env=dict(command.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stdout.fileno(),
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            # However we die. SGLang arranges the same for its children.
            preexec_fn=partial(die_with, os.getpid()),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def exit_code(self, *, wait_s: float) -> int | None:
        """None if it still runs after so long."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def stop(self, *, grace_s: float) -> None:
        """SIGTERM to the server, which tells its children; SIGKILL to all that is left after the grace period."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self.exit_code(wait_s=grace_s)
        # Schedulers outlive a server that was killed or crashed, and keep the memory and the GPU.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
