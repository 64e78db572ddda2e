"""One instance of a container: a process group, in a sandbox a whole process namespace, and its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import structlog

from trimtab.devcluster.container.sandbox import Mount, Sandbox
from trimtab.devcluster.quantity import quantity
from trimtab.embedded.reaper import Reaper

_log = structlog.get_logger(__name__)
_REAPER = Reaper()
_OUTPUT_LEFT_S = 2.0
_MEMORY_LOOK_S = 0.5


class Output(Protocol):
    """Where a process's output goes."""

    def write(self, piece: bytes) -> None: ...

    def close(self) -> None: ...


class CapturedOutput:
    """The end of the output, kept in memory."""

    def __init__(self, *, limit: int = 2048) -> None:
        self._limit = limit
        self._kept = b""

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def write(self, piece: bytes) -> None:
        self._kept = (self._kept + piece)[-self._limit :]

    def close(self) -> None:
        """It stays readable."""


class StartError(Exception):
    """The process could not be started."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started and where; `environment` is all of it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    """The working folder, inside the view."""
    mounts: Sequence[Mount] = ()
    read_only_root: bool = False


class ContainerProcess:
    """Started in the loop's own thread, because the sandbox dies with the thread that made it."""

    def __init__(self, process: asyncio.subprocess.Process, *, pump: asyncio.Task[None], sandboxed: bool) -> None:
        self._process = process
        self._pump = pump
        self._sandboxed = sandboxed
        self._killed = False

    @classmethod
    async def start(cls, launch: Launch, *, sandbox: Sandbox | None, output: Output) -> ContainerProcess:
        command = list(launch.command)
        if sandbox is not None:
            command = sandbox.command(
                command, mounts=launch.mounts, folder=launch.folder, read_only_root=launch.read_only_root
            )
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(launch.environment),
                cwd=launch.folder if sandbox is None else None,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise StartError(f"{command[0]}: {error}") from None
        _REAPER.watch(process.pid)
        return cls(process, pump=asyncio.create_task(_pump(process.stdout, output)), sandboxed=sandbox is not None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        """The exit code, 128 and the signal's number where one ended it; all of its output is in the log then."""
        code = await self._process.wait()
        self.kill()  # what the first process left behind
        # Without a sandbox, a grandchild in a session of its own may hold the pipe open; it is not waited for.
        await asyncio.wait({self._pump}, timeout=_OUTPUT_LEFT_S)
        self._pump.cancel()
        return 128 - code if code < 0 else code

    def terminate(self) -> None:
        """SIGTERM to the container's first process and to no other, as a kubelet does: those who pass it on to their
        children do so themselves, and a second one would tell them not to wait."""
        if not self.alive:
            return
        target = _inside(self.pid) if self._sandboxed else self.pid
        if target is None:
            self.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGTERM)

    async def kill_beyond(self, limit_bytes: int) -> None:
        """As a kernel does to a container over its memory limit, but looked at twice a second: one that grows fast may
        have more for a moment. Returns when it has killed; to be cancelled when the process ends by itself."""
        while True:
            if await asyncio.to_thread(self._memory_bytes) > limit_bytes:
                self.kill()
                return
            await asyncio.sleep(_MEMORY_LOOK_S)

    def _memory_bytes(self) -> int:
        """What its processes use, memory that they share counted once between them."""
        used = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.pid)
            for process in (first, *first.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used += _memory_of(process)
        return used

    def kill(self) -> None:
        """SIGKILL to all of it. Once: its number may be another's later."""
        if self._killed:
            return
        self._killed = True
        # The sandbox's own process is the leader of this group, and all inside die with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _REAPER.forget(self.pid)


def memory_limit(container: Mapping[str, Any]) -> int | None:
    """In bytes; None where it has none."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None if limit is None else int(quantity(limit))


async def _pump(stream: asyncio.StreamReader | None, output: Output) -> None:
    assert stream is not None
    try:
        while piece := await stream.read(65_536):
            try:
                output.write(piece)
            except OSError as error:
                # A full disk loses lines; a pipe that is not read would stop the container.
                _log.warning("output_lost", error=str(error))
    finally:
        output.close()


def _memory_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)


def _inside(bwrap: int) -> int | None:
    """The container's first process: bubblewrap has one child, the init of its process namespace, whose oldest child it
    is. None: it is not there yet, or has ended."""
    try:
        (init,) = psutil.Process(bwrap).children()
        return int(min(init.children(), key=lambda process: process.create_time()).pid)
    except (psutil.NoSuchProcess, ValueError):
        return None
