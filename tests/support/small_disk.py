"""A file system of a few megabytes, really full when it is full: a tmpfs, for which a test needs to be root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MIB = 1 << 20


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, *, leaving: int = 0) -> None:
        """What others put there."""
        with self._filler.open("ab", buffering=0) as filler:
            while (left := self.free_bytes - leaving) > 0:
                try:
                    filler.write(bytes(min(_MIB, left)))
                except OSError:
                    return

    def free(self) -> None:
        """What others have put there is gone."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, *, mebibytes: int) -> Iterator[SmallDisk]:
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
