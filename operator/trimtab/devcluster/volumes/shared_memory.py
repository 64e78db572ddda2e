"""Volumes of medium Memory: folders in the machine's memory, which cost memory until they are removed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own in it
_PREFIX = "trimtab-node-"
_OWNER = ".of"
"""Ends the name of a link beside a memory folder, to the data folder of its node."""


def take_memory_folder(folder: Path) -> Path:
    """Of the node with this data folder. One name for one data folder, so that a node clears what a killed one left."""
    sweep_shared_memory()
    owner = folder.resolve()
    memory = _parent() / f"{_PREFIX}{hashlib.sha256(str(owner).encode()).hexdigest()[:16]}"
    memory.mkdir(mode=0o700, exist_ok=True)
    link = memory.with_suffix(_OWNER)
    link.unlink(missing_ok=True)
    link.symlink_to(owner)
    return memory


def drop_memory_folder(memory: Path) -> None:
    shutil.rmtree(memory, ignore_errors=True)
    memory.with_suffix(_OWNER).unlink(missing_ok=True)


def sweep_shared_memory() -> None:
    """Drop what killed nodes left whose data folders are gone: no other node will ever clear it."""
    for link in _parent().glob(f"{_PREFIX}*{_OWNER}"):
        if not link.exists():
            drop_memory_folder(link.with_suffix(""))


def _parent() -> Path:
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
