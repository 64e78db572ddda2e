"""A disk that loses its power: an ext4 file system that forgets what nobody forced onto it, for which a test needs to
be root. What a killed process has written stays in the kernel's memory; only such a disk shows what was never synced.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_EXT4_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING_THE_LOG = 2


class PowerDisk:
    def __init__(self, folder: Path, *, mebibytes: int) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".0.img")
        with self._image.open("wb") as file:
            file.truncate(mebibytes << 20)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True, capture_output=True)
        self._mount()

    def lose_power(self) -> None:
        """From now on nothing is written any more, and what was not yet is lost; whoever writes gets an error."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """The file system reads its log, as after any start. All who used it have ended, as they do with the power."""
        self.remove()
        # A copy: whoever has made a mount namespace in the meantime still holds the old one, which stays dead.
        old, number = self._image, int(self._image.suffixes[-2][1:])
        self._image = self.folder.with_suffix(f".{number + 1}.img")
        subprocess.run(["cp", "--sparse=always", str(old), str(self._image)], check=True)
        old.unlink()
        self._mount()

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.folder)], check=True, capture_output=True)


@contextmanager
def power_disk(folder: Path, *, mebibytes: int) -> Iterator[PowerDisk]:
    folder.mkdir(parents=True)
    try:
        disk = PowerDisk(folder, mebibytes=mebibytes)
    except (FileNotFoundError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"a disk that loses its power cannot be made here: {problem}")
    try:
        yield disk
    finally:
        disk.remove()
