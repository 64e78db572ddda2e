"""Says yes to every process that an agent wants to start, until there are as many as it may have.

It is executed beside guard.py, with the standard library alone. Without whoever gives out permits, and after
`close`, no process below can have a child: what is left can be killed, however fast it was.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE_BYTES = 80
_GO_ON = 1


class ForkPermits:
    """`count` says how many processes there are. It is asked only when as many were permitted as there may be."""

    def __init__(self, listener: int, *, most: int, count: Callable[[], int]) -> None:
        self._listener = listener
        self._most = most
        self._count = count
        self._known = 1

    def fileno(self) -> int:
        return self._listener

    def answer(self) -> None:
        """The process that waits longest."""
        notice = bytearray(_NOTICE_BYTES)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
            (ident,) = struct.unpack_from("Q", notice)
            if self._permitted():
                answer = struct.pack("QqiI", ident, 0, 0, _GO_ON)
            else:
                answer = struct.pack("QqiI", ident, 0, -errno.EAGAIN, 0)
            fcntl.ioctl(self._listener, _SEND, answer)
        except OSError as error:
            # It died, or a signal came, before or after it was heard.
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise

    def close(self) -> None:
        os.close(self._listener)

    def _permitted(self) -> bool:
        if self._known >= self._most:
            self._known = self._count()
        if self._known >= self._most:
            return False
        self._known += 1
        return True
