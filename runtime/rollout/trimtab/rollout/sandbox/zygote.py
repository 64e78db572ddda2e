"""Forks a jail for every program: a process that has imported all it needs, so that a program waits for no interpreter
but its own.

It is executed inside the walls, with the standard library alone, and ends with whoever holds the other end of its
socket. It never reads what a program says.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trimtab.rollout.agents import fork_permits, landlock
from trimtab.rollout.sandbox import folders, frames, jail, walls

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_S = 1.0
_NONE = b"!"
# The guard imports these when it starts a program, and then there are no files to import from.
_NEEDED = (fork_permits, landlock)
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str]) -> None:
    """With the descriptor of the socket, and what holds for all jails, as JSON."""
    control = socket.socket(fileno=int(arguments[0]))
    settings: dict[str, Any] = json.loads(arguments[1])
    folder: str | None = settings.pop("folder")
    around = jail.Surroundings(**settings)
    # An interrupt is a signal like any other, and the first of a namespace hears none from within that it does not
    # ask for.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    fork: Callable[[], int] = os.fork
    if folder is None:
        fork = walls.ProcessNamespaces().fork
    else:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.collect()
    gc.freeze()
    jails: set[int] = set()
    while True:
        if folder is not None and not select.select([control], [], [], _ORPHANS_S)[0]:
            _end_orphans(jails)
            continue
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            return
        connection = socket.socket(fileno=descriptors[0])
        try:
            pid = fork()
        except OSError:  # no process or no memory to be had just now
            connection.close()
            control.send(_NONE)
            continue
        if pid == 0:
            control.close()
            _be_a_jail(connection, around, folder)
        connection.close()
        jails.add(pid)
        _tell(control, pid)


def _tell(control: socket.socket, pid: int) -> None:
    """Whoever asked, by a descriptor that no other process can come to have."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        control.send(_NONE)
        return
    socket.send_fds(control, [b"."], [held])
    os.close(held)


def _be_a_jail(connection: socket.socket, around: jail.Surroundings, folder: str | None) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        place: folders.Place
        if folder is None:
            walls.enter()
            place = folders.OwnDisk()
        else:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            place = folders.SharedDisk(folder)
        jail.serve(connection, place, around)
    except OSError as error:
        with contextlib.suppress(OSError):
            connection.sendall(frames.packed({"failed": str(error)}, []))
    finally:
        os._exit(0)


def _end_orphans(jails: set[int]) -> None:
    """What a jail has left that something killed. Where there are namespaces the kernel does it."""
    told = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    alive = {int(pid) for pid in told.split()}
    jails &= alive
    for pid in alive - jails:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
