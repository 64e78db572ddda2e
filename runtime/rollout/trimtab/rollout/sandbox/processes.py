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
    memory_bytes: int
    cpu_s: float


class Processes:
    """All below this one."""

    def tasks(self) -> int:
        """Processes with all of their threads."""
        return sum(int(fields[_THREADS]) for fields in _stats(guard.descendants(os.getpid())))

    def look(self, *, most: int) -> Look:
        """Memory that several processes share is told apart only where they would else come to more than `most`."""
        pids = guard.descendants(os.getpid())
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        stats = _stats(pids)
        ticks = sum(int(field) for fields in stats for field in fields[_USER_TICKS : _USER_TICKS + 4])
        return Look(
            memory_bytes=_memory_bytes(pids, most=most),
            cpu_s=ended.ru_utime + ended.ru_stime + ticks / _TICKS,
        )


def _memory_bytes(pids: Sequence[int], *, most: int) -> int:
    """Of which nothing is counted twice. What maps files can be taken from them again."""
    own = guard.resident(pids)
    if own > most:
        return own
    with_files = sum(_pages(pid) for pid in pids) * resource.getpagesize()
    return own if with_files <= most else sum(_share_bytes(pid) for pid in pids)


def _pages(pid: int) -> int:
    try:
        return int(Path("/proc", str(pid), "statm").read_bytes().split()[1])
    except OSError:  # it has ended meanwhile
        return 0


def _share_bytes(pid: int) -> int:
    """Its own, and its share of what it shares. One that lets nobody look counts with all that it has."""
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_bytes().splitlines()
    except OSError:
        return _pages(pid) * resource.getpagesize()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))


def _stats(pids: Sequence[int]) -> Sequence[Sequence[bytes]]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split())
    return found
