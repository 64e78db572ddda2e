"""A disk that takes only so many writes a second: a file system on a loop device, for which a test needs to be root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device")
"""Of the root group: the kernel's own threads, which write what processes leave in memory, belong to it."""


@dataclass(frozen=True, kw_only=True)
class SlowDisk:
    folder: Path
    device: str
    """Its number, major:minor."""

    def limit_writes(self, per_s: int) -> None:
        """0 for as many as it takes."""
        _THROTTLE.write_text(f"{self.device} {per_s}")


@contextmanager
def slow_disk(folder: Path, *, mebibytes: int) -> Iterator[SlowDisk]:
    folder.mkdir(parents=True)
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"a slow disk cannot be made here: {problem}")
    number = folder.stat().st_dev
    disk = SlowDisk(folder=folder, device=f"{os.major(number)}:{os.minor(number)}")
    try:
        if not _THROTTLE.exists():
            pytest.skip("a slow disk cannot be made here: the kernel's blkio group is not mounted")
        yield disk
    finally:
        if _THROTTLE.exists():
            disk.limit_writes(0)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
