"""Writing files so that a crash shows either the old content or the new, and disk errors show before it matters."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

from trimtab.fabric.durable_files import sync_folder


def rename(source: Path, target: Path) -> None:
    """Within one folder."""
    source.replace(target)
    sync_folder(target.parent)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


class SharedFile:
    """A new file that several threads fill, each at offsets of its own.

    The descriptor is closed by the last of them: while a write is on its way, its number must not become another file.
    """

    def __init__(self, path: Path, *, size: int = 0) -> None:
        """Raises FileExistsError. Space for `size` bytes is taken now, so that a full /dev/shm is an OSError here."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._writers = 0
        self._closed = False
        if size:
            try:
                os.posix_fallocate(self._descriptor, 0, size)
            except OSError:
                self.close()
                remove(path)
                raise

    def write(self, content: bytes | memoryview, *, offset: int) -> None:
        with self._lock:
            if self._closed:
                raise ValueError(f"{self._path} is closed for writing")
            self._writers += 1
        try:
            rest = memoryview(content)
            if rest.nbytes:  # an empty one cannot be cast
                rest = rest.cast("B")
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
        finally:
            with self._lock:
                self._writers -= 1
                self._close_if_last()

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def map(self) -> mmap.mmap:
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Ends writing. Writes that have begun are let finish."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._close_if_last()

    def _close_if_last(self) -> None:
        if self._closed and not self._writers:
            os.close(self._descriptor)
