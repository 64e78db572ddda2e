"""Runs a command that somebody else wrote: in an environment of its own, within limits, and to its very end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trimtab.rollout.agents import landlock
from trimtab.rollout.agents.files import DEVICES, Readable
from trimtab.rollout.workflows.errors import WorkflowError

_GUARD = Path(__file__).with_name("guard.py")
_END_TIMEOUT_S = 10.0
_READ_BYTES = 1 << 16
_SHOWN = 2000
_SIGNS_OF_CONTAINMENT = ("Permission denied", "PermissionError", "Operation not permitted", "EACCES", "EPERM")
_CONTAINED = (
    " (an agent reads what programs need, writes in its own folder and asks the gateway: see readable and network)"
)


class AgentFailed(WorkflowError):
    """It ended with an error, or could not be started. Nobody knows what it would have been worth."""

    kind = "agent-failed"


class AgentTimeout(WorkflowError):
    """It did not come to its end in time."""

    kind = "agent-timeout"


class AgentUncontained(WorkflowError):
    """It was not started, because it could have reached what it must not."""

    kind = "agent-uncontained"


class AgentOutOfMemory(WorkflowError):
    """It and what it started took more memory than they may."""

    kind = "agent-out-of-memory"


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    time_s: float
    memory_bytes: int
    """Of each process that it starts, and of all of them together."""
    output_bytes: int
    """What is kept of its output: the end."""


@dataclass(frozen=True, kw_only=True)
class AgentReach:
    """What it may reach besides its folder, in which it may do everything."""

    read: Readable
    ports: Sequence[int] | None
    """Of TCP, that it may connect to. None: the network, as far as the pod may."""
    complete: bool = True
    """It does not run where the kernel cannot keep it to this."""


@dataclass(frozen=True, kw_only=True)
class AgentOutput:
    """The end of what it wrote to standard output and to standard error."""

    output: str
    errors: str


async def run_agent(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    given: Path,
    folder: Path,
    reach: AgentReach,
    limits: AgentLimits,
) -> AgentOutput:
    """Run it in `folder` with the file `given` as its input, until it ends by itself without an error.

    Raises a WorkflowError otherwise. However it ends, and when the episode is cancelled, all that it started ends too.
    """
    if reach.complete:
        _check_kernel(landlock.version())
    allowed = {
        "memory": limits.memory_bytes,
        "ports": reach.ports,
        "listed": reach.read.listed,
        "read": reach.read.whole,
        "devices": DEVICES,
        "write": [str(folder)],
    }
    with _pipe() as (control, hold), _pipe() as (report, told), _file(json.dumps(allowed)) as bounds:
        with given.open("rb") as read_from:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARD)),
                *(str(control.fileno()), str(told.fileno()), str(bounds.fileno()), *command),
                stdin=read_from,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env=dict(environment),
                pass_fds=(control.fileno(), told.fileno(), bounds.fileno()),
                start_new_session=True,
            )
        told.close()
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.gather(
            _tail(process.stdout, limits.output_bytes), _tail(process.stderr, limits.output_bytes), process.wait()
        )
        try:
            await asyncio.wait({reading}, timeout=limits.time_s)
            late = not reading.done()
        finally:
            hold.close()
            # The guard needs a moment for its work, also when nobody waits for the result any more.
            await asyncio.wait({reading}, timeout=_END_TIMEOUT_S)
            if process.returncode is None:
                process.kill()
        if late:
            raise AgentTimeout(f"{command[0]} did not end within {limits.time_s:g} s: see time_limit_s")
        output, errors, _ = reading.result()
        ended = report.read()
    _check(json.loads(ended or b"{}"), command=command, errors=errors, memory_bytes=limits.memory_bytes)
    return AgentOutput(output=output, errors=errors)


def _check_kernel(version: int) -> None:
    able = landlock.missing(version)
    if able:
        raise AgentUncontained(
            f"under this kernel (Landlock {version or 'is missing'}) an agent could {', '.join(able)}: use nodes with "
            f"Linux {landlock.COMPLETE_SINCE} or newer, whose container runtime lets pods use Landlock, or accept that "
            "with `containment: best-effort`"
        )


def _check(ended: Mapping[str, object], *, command: Sequence[str], errors: str, memory_bytes: int) -> None:
    if ended.get("code") == 0:
        return
    if "memory" in ended:
        raise AgentOutOfMemory(f"{command[0]} took more than {memory_bytes >> 20} MiB: see memory_mib")
    if "uncontained" in ended:
        raise AgentUncontained(
            f"{command[0]} was not started, because it could not be contained: {ended['uncontained']}"
        )
    if "unstarted" in ended:
        raise AgentFailed(f"command: it cannot be started: {ended['unstarted']}")
    why = f"ended with {ended['code']}" if "code" in ended else "was lost with its guard"
    hint = _CONTAINED if any(sign in errors for sign in _SIGNS_OF_CONTAINMENT) else ""
    raise AgentFailed(f"{command[0]} {why}: {errors[-_SHOWN:].strip() or 'it wrote nothing to standard error'}{hint}")


async def _tail(stream: asyncio.StreamReader, keep: int) -> str:
    """The end of it. The rest is read too, so that nobody waits for room in the pipe."""
    parts: deque[bytes] = deque()
    size = 0
    while part := await stream.read(_READ_BYTES):
        parts.append(part)
        size += len(part)
        while size - len(parts[0]) >= keep:
            size -= len(parts.popleft())
    return b"".join(parts)[-keep:].decode(errors="replace")


@contextmanager
def _pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Its two ends, each of which may be closed before."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as receives, os.fdopen(write, "wb") as sends:
        yield receives, sends


@contextmanager
def _file(text: str) -> Iterator[BinaryIO]:
    """In memory: the list can be longer than an argument, or than what waits in a pipe."""
    with os.fdopen(os.memfd_create("agent"), "w+b") as file:
        file.write(text.encode())
        file.seek(0)
        yield file
