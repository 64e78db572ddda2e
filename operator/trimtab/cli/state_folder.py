"""The folder that a job of `trimtab run` lives in. One process has it at a time: two would take each other's secrets,
streams and checkpoints away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

_LOCK = "lock"

state_folder_option = click.option(
    "--state-folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Of a job of `trimtab run`, running or not: .trimtab/JOB beside its manifest.",
)


class StateFolderInUse(RuntimeError):
    """Another process runs the job; nothing was changed."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder is made if it is not there, and held until the block or the process ends.

    Raises StateFolderInUse with the number of the process that has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read(32).decode("ascii", "replace").strip() or "of unknown number"
            raise StateFolderInUse(f"process {pid} runs on {folder}") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n".encode())
        lock.flush()
        yield


@dataclass(frozen=True)
class Holder:
    pid: int
    since: float
    """Unix time."""


def holder(folder: Path) -> Holder | None:
    """The process that took the folder the last time; it may have ended."""
    lock = folder / _LOCK
    try:
        return Holder(int(lock.read_bytes()[:32]), lock.stat().st_mtime)
    except (OSError, ValueError):
        return None


def clear(folder: Path) -> None:
    """Everything but the lock, by the process that holds it: a lock in a new file would keep no other process out."""
    for entry in folder.iterdir():
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
