"""Which cores compute and which do everything else: with two of them, as when there are plenty."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil


def keep_apart() -> None:
    """This thread alone on one core, all other threads and the servers on the others."""
    mine, *others = sorted(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").iterdir():
        own = int(thread.name) == threading.get_native_id()
        os.sched_setaffinity(int(thread.name), {mine} if own else set(others))
    for child in psutil.Process().children(recursive=True):
        child.cpu_affinity(others)


def let_mingle() -> None:
    everywhere = set(range(os.cpu_count() or 1))
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), everywhere)
    for child in psutil.Process().children(recursive=True):
        child.cpu_affinity(sorted(everywhere))
