"""Stands between the worker and an agent that it runs: ends the agent and everything that it started.

It is executed by its path, with the standard library alone, so that it starts within milliseconds. It adopts whatever
loses its parent below it (Linux calls that a subreaper), so nothing gets away by starting a session of its own. The
worker holds the other end of a pipe: when that closes, because the time is over or the worker is dead, all ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0
"""Between looks at the memory of all. Each reads a line about every process of the pod."""
_KILL_AGAIN_S = 0.01
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main(arguments: Sequence[str]) -> None:
    control, report, memory = (int(argument) for argument in arguments[:3])
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel lets no process adopt orphans")
    told, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        agent = subprocess.Popen(arguments[3:], start_new_session=True, preexec_fn=lambda: _confine(memory))  # noqa: PLW1509
    except OSError as error:
        _tell(report, {"unstarted": f"{error.strerror}: {arguments[3]}"})
        return
    ended: dict[str, object] = {"stopped": True}
    while True:
        ready, _, _ = select.select([control, told], [], [], _LOOK_S)
        if control in ready:
            break
        if told in ready:
            os.read(told, 4096)
        code = _exit_code(agent.pid)
        if code is not None:
            ended = {"code": code}
            break
        if _resident(_descendants(os.getpid())) > memory:
            ended = {"memory": True}
            break
    _end_all()
    _tell(report, ended)


def _confine(memory: int) -> None:
    """Between fork and exec. Memory that is only reserved does not count: some runtimes reserve a terabyte."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _exit_code(agent: int) -> int | None:
    """Of the agent, once it has ended. Orphans that have ended are let go."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == agent:
            return os.waitstatus_to_exitcode(status)


def _end_all() -> None:
    """One may be adopted only now, and was not killed yet: until there is none."""
    while True:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_KILL_AGAIN_S)


def _descendants(ancestor: int) -> list[int]:
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


def _resident(pids: Sequence[int]) -> int:
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
