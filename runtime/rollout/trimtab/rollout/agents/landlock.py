"""Takes files, ports and other processes from a process for good, by Linux's Landlock, which needs no privileges.

It is executed beside guard.py, with the standard library alone. A rule for a folder holds for all beneath it, and
where a link leads decides, not where it lies. A process that is restricted cannot trace one that is not, nor read its
memory, environment or open files through /proc.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_FILES_SINCE = ((1, (1 << 13) - 1), (2, 1 << 13), (3, _TRUNCATE), (5, _IOCTL_DEVICE))
"""What can be refused about files, by the version of the interface that it came with."""
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_BIND_TCP, _CONNECT_TCP = 1, 2
_ALL_SCOPES = 0b11
"""Abstract unix sockets, and signals to processes that are not restricted alike."""

COMPLETE_SINCE = "6.12"
"""The Linux from which on nothing is missing."""
_LAYERS = (
    (1, "read and write the files of the worker, its credentials among them"),
    (3, "cut the files of the worker"),
    (_NETWORK_SINCE, "connect to any address"),
    (_SCOPES_SINCE, "send signals to the worker"),
)

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def version() -> int:
    """Of the interface that this kernel has; 0 where there is none, or where somebody forbids it."""
    found: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(found, 0)


def missing(known: int) -> Sequence[str]:
    """What a process can still do under a kernel with this version."""
    return [able for since, able in _LAYERS if known < since]


class Ruleset:
    """What a process may do that is restricted with it: nothing about files, unless it is allowed here."""

    def __init__(self, *, ports: Sequence[int] | None) -> None:
        """`ports` are those that it may connect to over TCP; None stands for all, and for listening too."""
        known = version()
        self._files = sum(rights for since, rights in _FILES_SINCE if known >= since)
        self._network = known >= _NETWORK_SINCE and ports is not None
        attributes = _Ruleset(
            self._files,
            _BIND_TCP | _CONNECT_TCP if self._network else 0,
            _ALL_SCOPES if known >= _SCOPES_SINCE else 0,
        )
        size = 24 if known >= _SCOPES_SINCE else 16 if known >= _NETWORK_SINCE else 8
        self._descriptor = _checked(
            _libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
        )
        for port in ports or () if self._network else ():
            self._add(_NET_PORT, _Port(_CONNECT_TCP, port))

    def let_list(self, paths: Iterable[str]) -> None:
        self._let(paths, _READ_DIR)

    def let_read(self, paths: Iterable[str]) -> None:
        self._let(paths, _READ_FILE | _READ_DIR | _EXECUTE)

    def let_use(self, devices: Iterable[str]) -> None:
        self._let(devices, _READ_FILE | _WRITE_FILE)

    def let_write(self, paths: Iterable[str]) -> None:
        self._let(paths, self._files & ~_IOCTL_DEVICE)

    def restrict(self) -> None:
        """This process, and all that it will start; nothing takes it back. It must have given up new privileges."""
        _checked(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(self._descriptor), ctypes.c_uint32(0)))

    def _let(self, paths: Iterable[str], rights: int) -> None:
        """What is not there needs no rule."""
        for path in paths:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    continue
                raise
            try:
                of_its_kind = rights if _is_folder(opened) else rights & _OF_FILES
                if of_its_kind & self._files:
                    self._add(_PATH_BENEATH, _Beneath(of_its_kind & self._files, opened))
            finally:
                os.close(opened)

    def _add(self, kind: int, rule: ctypes.Structure) -> None:
        _checked(
            _libc.syscall(
                _ADD_RULE, ctypes.c_int(self._descriptor), ctypes.c_int(kind), ctypes.byref(rule), ctypes.c_uint32(0)
            )
        )


def _is_folder(descriptor: int) -> bool:
    return os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH112


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
