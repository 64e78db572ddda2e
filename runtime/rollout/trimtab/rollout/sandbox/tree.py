"""Folders that a program has filled: how much is in them, and how they go away, however deep they are.

It is executed inside the walls, with the standard library alone. No link is followed. The sizes are looked at while the
program goes on, the removal is when it is dead.
"""

from __future__ import annotations

import contextlib
import errno
import os

_BLOCK = 512
_DEEPEST = 64
"""Below this nobody needs a folder, but somebody could hide one."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ENDLESS = 1 << 62


def size(folder: str) -> int:
    """In bytes, as the disk counts. What goes away meanwhile is not counted."""
    found = 0
    waiting = [(folder, 0)]
    while waiting:
        path, depth = waiting.pop()
        if depth > _DEEPEST:
            return ENDLESS
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    # An entry costs something, also when it is empty.
                    found += _BLOCK
                    with contextlib.suppress(FileNotFoundError):
                        found += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return ENDLESS
    return found


def remove(folder: str) -> None:
    """Step by step, because a path may be longer than the kernel takes, and one folder open at a time."""
    opened = os.open(folder, _FOLDER)
    waiting = [_emptied(opened)]
    above: list[str] = []
    while True:
        if waiting[-1]:
            name = waiting[-1].pop()
            os.chmod(name, 0o700, dir_fd=opened)
            inner = os.open(name, _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = inner
            above.append(name)
            waiting.append(_emptied(opened))
        elif above:
            outer = os.open("..", _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = outer
            waiting.pop()
            os.rmdir(above.pop(), dir_fd=opened)
        else:
            break
    os.close(opened)
    os.rmdir(folder)  # noqa: PTH106


def _emptied(folder: int) -> list[str]:
    """The names of the folders in it, which is all that is left there."""
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return inner
