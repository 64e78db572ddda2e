"""Whether a process still runs. One that has ended may vanish between two looks at it, or wait for its parent."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process | int) -> bool:
    """By itself, or by its id."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running() and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
