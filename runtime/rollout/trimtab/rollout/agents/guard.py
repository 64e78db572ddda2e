"""Stands between the worker and an agent that it runs: ends the agent and everything that it started.

It is executed by its path, with the standard library alone, so that it starts within milliseconds. It adopts whatever
loses its parent below it (Linux calls that a subreaper), so nothing gets away by starting a session of its own. The
worker holds the other end of a pipe: when that closes, because the time is over or the worker is dead, all ends.

What the agent may reach is taken from it between fork and exec, by landlock.py and seccomp.py beside this file;
how many processes it has, by fork_permits.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import platform
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_CAPABILITIES_VERSION = 0x20080522
_LOOK_S = 1.0
"""Between looks at the memory of all. Each reads a line about every process of the pod."""
_KILL_AGAIN_S = 0.01
_MAX_PROCESSES = 256
_RESOURCES = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 4 << 30), (resource.RLIMIT_NOFILE, 4096))
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str]) -> None:
    """With descriptors of the pipe that holds all, of the pipe for the report, and of a file with the limits."""
    control, report, limits = (int(argument) for argument in arguments[:3])
    with os.fdopen(limits, "rb") as file:
        allowed = json.loads(file.read())
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel lets no process adopt orphans")
    told, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        agent, permits = _start_agent(arguments[3:], allowed)
    except OSError as error:
        _tell(report, {"unstarted": f"{error.strerror}: {arguments[3]}"})
        return
    except (subprocess.SubprocessError, Uncontained) as error:
        _tell(report, {"uncontained": str(error)})
        return
    ended = _watch(agent.pid, permits, control=control, told=told, memory=allowed["memory"])
    permits.close()
    end_all()
    _tell(report, ended)


class Uncontained(Exception):
    """The kernel refused to contain it."""


def _start_agent(command: Sequence[str], allowed: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], Any]:
    seccomp = _beside("seccomp")
    machine = platform.machine()
    try:
        steps = seccomp.program(network=allowed["ports"] is None, machine=machine)
    except seccomp.Unfiltered as error:
        raise Uncontained(str(error)) from None
    return start(
        command,
        allowed,
        steps=steps,
        resources=(*_RESOURCES, (resource.RLIMIT_DATA, allowed["memory"])),
        processes=_MAX_PROCESSES,
        count=lambda: len(descendants(os.getpid())),
    )


def start(
    command: Sequence[str],
    allowed: Mapping[str, Any],
    *,
    steps: Sequence[tuple[int, int, int, int]],
    resources: Sequence[tuple[int, int]],
    processes: int,
    count: Callable[[], int],
    **streams: Any,
) -> tuple[subprocess.Popen[bytes], Any]:
    """With what it may reach by Landlock, and by `steps` of a seccomp filter. `count` says how many processes there
    are, and `streams` are for Popen.

    Raises OSError where there is no such command, and Uncontained.
    """
    landlock, seccomp, fork_permits = _beside("landlock"), _beside("seccomp"), _beside("fork_permits")
    machine = platform.machine()
    receives, sends = socket.socketpair()
    try:
        rules = landlock.Ruleset(ports=allowed["ports"]) if landlock.version() else None
        if rules is not None:
            rules.let_list(allowed["listed"])
            rules.let_read(allowed["read"])
            rules.let_use(allowed["devices"])
            rules.let_write(allowed["write"])
    except OSError as error:
        raise Uncontained(str(error)) from None

    def confine() -> None:
        """Between fork and exec. Memory that is only reserved does not count: some runtimes reserve a terabyte."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for limit, most in resources:
            _lower(limit, most)
        try:
            _drop_capabilities()
            seccomp.give_up_privileges()
            if rules is not None:
                rules.restrict()
            socket.send_fds(sends, [b"."], [seccomp.install(steps, machine=machine)])
        except OSError as error:
            sends.send(str(error).encode())
            raise

    try:
        agent = subprocess.Popen(command, start_new_session=True, preexec_fn=confine, **streams)  # noqa: PLW1509
    except subprocess.SubprocessError:
        # What a child raises does not come here by itself.
        receives.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            raise Uncontained(receives.recv(4096).decode()) from None
        raise
    _, (listener,), _, _ = socket.recv_fds(receives, 1, 1)
    return agent, fork_permits.ForkPermits(listener, most=processes, count=count)


def _beside(name: str) -> ModuleType:
    """No path leads to it where this file is run by itself, without the folders that modules come from."""
    if __package__:
        return importlib.import_module(f"{__package__}.{name}")
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _lower(limit: int, most: int) -> None:
    _, hard = resource.getrlimit(limit)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (least, least))


def _drop_capabilities() -> None:
    """A worker that is root on its own machine has some. No program gives them back."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def _watch(agent: int, permits: Any, *, control: int, told: int, memory: int) -> dict[str, object]:
    looks_at = time.monotonic() + _LOOK_S
    while True:
        ready, _, _ = select.select([control, told, permits], [], [], max(0.0, looks_at - time.monotonic()))
        if control in ready:
            return {"stopped": True}
        if told in ready:
            os.read(told, 4096)
        code = exit_code(agent)
        if code is not None:
            return {"code": code}
        if permits in ready:
            permits.answer()
        if time.monotonic() >= looks_at:
            if resident(descendants(os.getpid())) > memory:
                return {"memory": True}
            looks_at = time.monotonic() + _LOOK_S


def exit_code(agent: int) -> int | None:
    """Of the agent, once it has ended. Orphans that have ended are let go."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == agent:
            return os.waitstatus_to_exitcode(status)


def end_all() -> None:
    """One may be adopted only now, and was not killed yet: until there is none."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_KILL_AGAIN_S)


def descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # The name may contain anything, a parenthesis too; what follows the last one is numbers.
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    new = [ancestor]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def resident(pids: Sequence[int]) -> int:
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            resident, shared = (int(field) for field in Path("/proc", str(pid), "statm").read_bytes().split()[1:3])
            pages += resident - shared
    return pages * resource.getpagesize()


def _tell(report: int, ended: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the worker is dead
        os.write(report, json.dumps(ended).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
