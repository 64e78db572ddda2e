"""Puts a jail into namespaces of its own, and gives it a disk that ends with it.

It is executed inside the walls, with the standard library alone. The jail is the first process of its own process
namespace: when it ends, the kernel ends all that came from it, and nothing within can send it a signal.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_NEW_MOUNTS, _NEW_CGROUPS, _NEW_NAMES = 0x00020000, 0x02000000, 0x04000000
_NEW_IPC, _NEW_PROCESSES, _NEW_NETWORK = 0x08000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND, _MOVE = 32, 4096, 8192
_DETACH = 2
_MOST_FILES = 8192
"""An empty file costs the kernel a kilobyte that no size counts."""

BOX = "/box"
CODE = "/trimtab"
FOLDERS = {"program": "/program", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 - of the jail
"""What a program can write in: all of one disk."""
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessNamespaces:
    """Children that are each the first of a process namespace."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        _checked(_libc.unshare(_NEW_PROCESSES), "a process namespace")
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                # Else the next child would be the second of this one's.
                _checked(_libc.setns(self._own, _NEW_PROCESSES), "the own process namespace")
        return pid


def enter() -> None:
    """Called by the first process of a process namespace. What is left of the walls' own files is taken away."""
    _checked(
        _libc.unshare(_NEW_MOUNTS | _NEW_IPC | _NEW_NAMES | _NEW_NETWORK | _NEW_CGROUPS),
        "namespaces for mounts, messages, names and network",
    )
    _mount("tmpfs", BOX, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=4k,nr_inodes=16")
    inner = f"{BOX}/proc"
    Path(inner).mkdir()
    # Its own processes, and nothing about the machine.
    _mount("proc", inner, "proc", _NO_SETUID | _NO_DEVICES | _NO_EXECUTION, "subset=pid")
    _unmount("/proc")
    _mount(inner, "/proc", None, _MOVE)
    # Of all that are killed for memory, the worker comes last.
    Path("/proc/self/oom_score_adj").write_text("900", encoding="ascii")
    _mount("proc", "/proc", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SETUID | _NO_DEVICES | _NO_EXECUTION)
    _unmount(BOX)
    _unmount(CODE)


def mount_disk(size_bytes: int) -> None:
    """One for all that can be written in."""
    page = os.sysconf("SC_PAGE_SIZE")
    pages = -(-size_bytes // page)
    _mount("tmpfs", BOX, "tmpfs", _NO_SETUID | _NO_DEVICES, f"size={pages * page},nr_inodes={_MOST_FILES},mode=0700")
    for name, target in FOLDERS.items():
        Path(BOX, name).mkdir(mode=0o700)
        _mount(f"{BOX}/{name}", target, None, _BIND)
    _unmount(BOX)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    given: Sequence[bytes | None] = [None if word is None else word.encode() for word in (source, target, kind)]
    done = _libc.mount(*given, ctypes.c_ulong(flags), None if options is None else options.encode())
    _checked(done, f"a mount at {target}")


def _unmount(target: str) -> None:
    _checked(_libc.umount2(target.encode(), _DETACH), f"taking away {target}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {what}")
