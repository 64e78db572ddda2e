"""One instance of a container: a process group, in a sandbox a whole process namespace, and its output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trimtab.devnode.host_view import Mount
from trimtab.devnode.sandbox import Sandbox
from trimtab.embedded.reaper import Reaper

_REAPER = Reaper()
_OUTPUT_LEFT_S = 2.0
_INFO_TIMEOUT_S = 10.0


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

    def __init__(self, process: asyncio.subprocess.Process, *, pump: asyncio.Task[None], first: int | None) -> None:
        self._process = process
        self._pump = pump
        self._first = first
        self._killed = False

    @classmethod
    async def start(cls, launch: Launch, *, sandbox: Sandbox | None, output: Output) -> ContainerProcess:
        command = list(launch.command)
        folder: Path | None = launch.folder
        reading: int | None = None
        writing: int | None = None
        if sandbox is not None:
            reading, writing = os.pipe()
            command = sandbox.command(
                command,
                mounts=launch.mounts,
                folder=launch.folder,
                read_only_root=launch.read_only_root,
                info_fd=writing,
            )
            folder = None
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(launch.environment),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if writing is None else (writing,),
            )
        except (OSError, ValueError) as error:
            if reading is not None:
                os.close(reading)
            raise StartError(f"{command[0]}: {error}") from None
        finally:
            if writing is not None:
                os.close(writing)
        _REAPER.watch(process.pid)
        pump = asyncio.create_task(_pump(process.stdout, output))
        first = None if reading is None else await _first_process(reading)
        return cls(process, pump=pump, first=first)

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
        target = self.pid if self._first is None else _only_child(self._first)
        if target is None:
            self.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all of it. Once: its number may be another's later."""
        if self._killed:
            return
        self._killed = True
        # The sandbox's own process is the leader of this group, and all inside die with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _REAPER.forget(self.pid)


async def _pump(stream: asyncio.StreamReader | None, output: Output) -> None:
    assert stream is not None
    try:
        while piece := await stream.read(65_536):
            output.write(piece)
    finally:
        output.close()


async def _first_process(reading: int) -> int | None:
    """The number of the sandbox's inner init, which bubblewrap tells on a pipe; None when it failed before."""
    told = b""
    try:
        async with asyncio.timeout(_INFO_TIMEOUT_S):
            while piece := await asyncio.to_thread(os.read, reading, 4096):
                told += piece
    except TimeoutError:
        return None
    finally:
        os.close(reading)
    return int(json.loads(told)["child-pid"]) if told else None


def _only_child(init: int) -> int | None:
    """The container's first process is the only child of the sandbox's init that was not adopted: the oldest."""
    try:
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    except OSError:
        return None
    return min(map(int, children)) if children else None
