"""Files that outlive a loss of power: what a process has written lies in the kernel's memory until somebody forces it
onto the disk.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PARTIAL = ".partial"


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Whoever reads it, after a crash too, finds the old content or the new."""
    partial = path.with_name(path.name + _PARTIAL)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes names in the folder outlive the machine: those of new files, and of renamed ones."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(folder: Path) -> None:
    """All that any process has written to the disk of this folder. Systems without a call for one disk sync all."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)
