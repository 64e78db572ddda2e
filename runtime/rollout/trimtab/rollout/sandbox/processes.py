"""Counts what a program and all that it started take: tasks, memory and processor time.

It is executed inside the walls, with the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.rollout.agents import guard

_TICKS = os.sysconf("SC_CLK_TCK")
_USER_TICKS, _THREADS = 11, 17
"""Places in /proc/PID/stat, counted behind the name. User time is followed by the system's, and by both of children
that have ended.
"""


@dataclass(frozen=True, kw_only=True)
class Look:
    tasks: int
    """Processes with all of their threads."""
    memory_bytes: int
    cpu_s: float


class Processes:
    """All below this one."""

    def tasks(self) -> int:
        return _tasks(_stats(guard.descendants(os.getpid())))

    def look(self) -> Look:
        pids = guard.descendants(os.getpid())
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        stats = _stats(pids)
        ticks = sum(int(field) for fields in stats for field in fields[_USER_TICKS : _USER_TICKS + 4])
        return Look(
            tasks=_tasks(stats),
            memory_bytes=guard.resident(pids),
            cpu_s=ended.ru_utime + ended.ru_stime + ticks / _TICKS,
        )


def _tasks(stats: Sequence[Sequence[bytes]]) -> int:
    return sum(int(fields[_THREADS]) for fields in stats)


def _stats(pids: Sequence[int]) -> Sequence[Sequence[bytes]]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split())
    return found
