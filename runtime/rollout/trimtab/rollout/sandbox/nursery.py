"""Forks a cell for every program: a process that has imported all it needs, so that a program waits for no interpreter
but its own.

It is executed inside the walls, with the standard library alone, and ends with whoever holds the other end of its
socket. It never reads what a program says.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Sequence

from trimtab.rollout.agents import fork_permits, landlock
from trimtab.rollout.sandbox import cell, folders, frames, walls


def main(arguments: Sequence[str]) -> None:
    """With the descriptor of the socket, the most bytes that a program may have, where commands are looked for, and
    what a program may read.
    """
    control = socket.socket(fileno=int(arguments[0]))
    most, path, read = int(arguments[1]), arguments[2], arguments[3:]
    # An interrupt is a signal like any other, and the first of a namespace hears none from within that it does not
    # ask for.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert fork_permits
    assert landlock, "the guard needs it where there are no files to import from"
    namespaces = walls.ProcessNamespaces()
    gc.collect()
    gc.freeze()
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            return
        connection = socket.socket(fileno=descriptors[0])
        pid = namespaces.fork()
        if pid == 0:
            control.close()
            _be_a_cell(connection, most=most, path=path, read=read)
        connection.close()
        _tell(control, pid)


def _tell(control: socket.socket, pid: int) -> None:
    """Whoever asked, by a descriptor that no other process can come to have."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        control.send(b"!")
        return
    socket.send_fds(control, [b"."], [held])
    os.close(held)


def _be_a_cell(connection: socket.socket, *, most: int, path: str, read: Sequence[str]) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        walls.enter()
        cell.serve(connection, folders.Place(), read=read, path=path, most=most)
    except OSError as error:
        connection.sendall(frames.packed({"failed": str(error)}, []))
    finally:
        os._exit(0)
