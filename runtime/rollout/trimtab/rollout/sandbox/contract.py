"""What every sandbox does: it takes files, a command and limits, and gives back how the program ended.

A program's failure is the program's, told in Ended. What is raised is the sandbox's own: it fails the episode, and is
never a score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from trimtab.rollout.phases import PROGRAMS, phase
from trimtab.rollout.workflows.errors import WorkflowError

_MIB = 1 << 20


class SandboxFailed(WorkflowError):
    """The sandbox could not run the program. Nobody knows what it would have done."""

    kind = "sandbox-failed"


class End(StrEnum):
    """Why a program ended."""

    EXITED = "exited"
    """By itself; `exit_code` tells how."""
    SIGNALLED = "signalled"
    """By a signal that no limit sent, such as a segmentation fault; `exit_code` is the signal's number, negative."""
    TIME = "time"
    """Its wall or processor time was over."""
    MEMORY = "memory"
    OUTPUT = "output"
    """It wrote more to standard output and standard error than it may."""


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """Of a program and all that it starts, together."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_bytes: int = 512 * _MIB
    processes: int = 32
    disk_bytes: int = 64 * _MIB
    output_bytes: int = 1 * _MIB


@dataclass(frozen=True, kw_only=True)
class Program:
    command: tuple[str, ...]
    """`python3` is the sandbox's own interpreter."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path below the working folder, which is empty but for them. The program may write there."""
    stdin: bytes = b""
    collect: tuple[str, ...] = ()
    """Paths of the files to bring back. What is not there at the end, or not a plain file, does not come."""
    limits: ProgramLimits = ProgramLimits()


@dataclass(frozen=True, kw_only=True)
class Usage:
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    end: End
    exit_code: int
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes]
    usage: Usage

    @property
    def succeeded(self) -> bool:
        return self.end is End.EXITED and self.exit_code == 0


class Sandbox(Protocol):
    """Many programs at once; one waits while there is no room for it."""

    async def run(self, program: Program, /) -> Ended:
        """Raises SandboxFailed. When it is cancelled, the program and all that it started end."""


class TimedSandbox:
    """An episode's: it says how long its programs took."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def run(self, program: Program, /) -> Ended:
        with phase(PROGRAMS):
            return await self._sandbox.run(program)
