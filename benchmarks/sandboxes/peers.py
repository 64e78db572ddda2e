"""How programs are run without our sandbox: plainly, with limits on each process, and with bubblewrap for each run."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Sequence

from trimtab.rollout.sandbox import bubblewrap
from trimtab.rollout.sandbox.contract import Program, ProgramLimits, Sandbox

Runs = Callable[[str], Awaitable[None]]
_LIMITS = ProgramLimits()
_TIMEOUT_S = 60.0
# What is installed here costs whoever imports it, and inside the sandbox there is none of it.
_BARE = ("-I", "-S", "-c")


class Unexpected(RuntimeError):
    """A program did not do what it was written for, and what was measured means nothing."""


def plainly() -> Runs:
    """The floor: nothing holds it."""
    interpreter = bubblewrap.own_interpreter()
    return _subprocess([str(interpreter.executable), *_BARE])


def with_limits() -> Runs:
    """As most do it: on one process, whose children have their own."""
    interpreter = bubblewrap.own_interpreter()

    def limit() -> None:
        for which, most in (
            (resource.RLIMIT_DATA, _LIMITS.memory_bytes),
            (resource.RLIMIT_CPU, int(_LIMITS.cpu_s)),
            (resource.RLIMIT_FSIZE, _LIMITS.disk_bytes),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(which, (most, most))

    return _subprocess([str(interpreter.executable), *_BARE], before=limit)


def with_bubblewrap() -> Runs:
    """One for each run, with the same view and namespaces, and neither limits nor Landlock nor seccomp."""
    interpreter = bubblewrap.own_interpreter()
    bwrap = bubblewrap.find_bubblewrap()
    if bwrap is None:
        raise Unexpected("bubblewrap is not installed")
    prefix = str(interpreter.prefix)
    view = ["--ro-bind", "/usr", "/usr", "--ro-bind", prefix, prefix, "--proc", "/proc", "--dev", "/dev"]
    view += [word for name in ("bin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    wall = [str(bwrap), "--unshare-all", "--die-with-parent", "--clearenv", *view, "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return _subprocess([*wall, "--", str(interpreter.executable), *_BARE])


def in_sandbox(sandbox: Sandbox) -> Runs:
    async def run(source: str) -> None:
        ended = await sandbox.run(Program(command=("python3", *_BARE, source)))
        if not ended.succeeded:
            raise Unexpected(f"{ended.end}: {ended.stderr[-500:]!r}")

    return run


def _subprocess(command: Sequence[str], *, before: Callable[[], None] | None = None) -> Runs:
    async def run(source: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *command,
            source,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=before,
        )
        _, errors = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
        if process.returncode != 0:
            raise Unexpected(f"{process.returncode}: {errors[-500:]!r}")

    return run
