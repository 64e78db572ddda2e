"""Where a program's files are: its disk, what is put there before, and what is brought back after.

It is executed inside the walls, with the standard library alone. A program may have left links, pipes and folders of
any depth: whatever is read here after it is opened step by step, and never through a link.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trimtab.rollout.sandbox import tree, walls

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Full(Exception):
    """The files that the program was given do not fit on its disk."""


class Place(abc.ABC):
    """A folder to work in, and one for what is temporary."""

    def __init__(self, *, folder: str, temporary: str, writable: Sequence[str]) -> None:
        self.folder = folder
        self._temporary = temporary
        self.writable = writable

    @abc.abstractmethod
    def prepare(self, *, disk_bytes: int) -> None:
        """Called once, before there is a program."""

    def used_bytes(self) -> int:
        """Where the kernel does not count it itself."""
        return 0

    @abc.abstractmethod
    def remove(self) -> None:
        """Called when nothing of the program is alive."""

    def environment(self, path: str) -> Mapping[str, str]:
        return {"PATH": path, "HOME": self.folder, "TMPDIR": self._temporary, "LANG": "C.UTF-8"}

    def given(self, content: bytes) -> int:
        """Standard input: a file without a name."""
        with _no_room_is_full():
            descriptor = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            _write_all(descriptor, content)
        # Of its own, so that it cannot be written in.
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(descriptor)
        return again

    def write(self, files: Mapping[str, bytes]) -> None:
        with _no_room_is_full():
            for name, content in files.items():
                target = Path(self.folder, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
                try:
                    _write_all(descriptor, content)
                finally:
                    os.close(descriptor)

    def collect(self, names: Sequence[str], *, most: int) -> list[tuple[int, bytes]]:
        """Those that are plain files, by their place among the names, as far as they come to so many bytes."""
        found = []
        left = most
        for place, name in enumerate(names):
            with contextlib.suppress(OSError):
                content = _read(self.folder, name.split("/"), most=left)
                if content is not None:
                    found.append((place, content))
                    left -= len(content)
        return found


class OwnDisk(Place):
    """Behind namespaces."""

    def __init__(self) -> None:
        super().__init__(
            folder=walls.FOLDERS["program"], temporary=walls.FOLDERS["tmp"], writable=tuple(walls.FOLDERS.values())
        )

    def prepare(self, *, disk_bytes: int) -> None:
        walls.mount_disk(disk_bytes)

    def remove(self) -> None:
        """It goes with its namespace."""


class SharedDisk(Place):
    """Where there are no namespaces: two folders beside those of other programs. What they take is counted."""

    def __init__(self, above: str) -> None:
        self._root = tempfile.mkdtemp(prefix="program-", dir=above)
        folder, temporary = (f"{self._root}/{name}" for name in ("program", "tmp"))
        super().__init__(folder=folder, temporary=temporary, writable=(folder, temporary))

    def prepare(self, *, disk_bytes: int) -> None:
        for folder in self.writable:
            Path(folder).mkdir(mode=0o700)

    def used_bytes(self) -> int:
        """A file that has no name any more, but is open, is not found. Only as many can be open as a process may have,
        and none is larger than the disk may be.
        """
        return sum(map(tree.size, self.writable))

    def remove(self) -> None:
        tree.remove(self._root)


def _read(folder: str, steps: Iterable[str], *, most: int) -> bytes | None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, name = steps
        for step in above:
            inner = os.open(step, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
            os.close(opened)
            opened = inner
        # Without waiting for whoever would write into a pipe.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
    finally:
        os.close(opened)
    with os.fdopen(file, "rb") as reads:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            return None
        return reads.read(most)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _no_room_is_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Full from None
        raise
