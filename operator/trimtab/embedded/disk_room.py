"""How much room the disk beneath a server has left, and when a server that has met a full one must be started again.

nats-server 2.15 keeps a stream whose write failed for want of space as it is, unwritable, for as long as the process
lives, also when there is room again. Started anew, it reads what is on the disk and goes on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RoomLimits:
    """Room that is below `low_bytes` is short, until it is above `enough_bytes`. What lies below is for ledgers and
    what is under way: no new tasks are admitted there."""

    low_bytes: int = 64 * _MIB
    enough_bytes: int = 128 * _MIB


@dataclass(frozen=True)
class DiskRoom:
    """What was last seen. Frozen: `seen` gives the next one."""

    limits: RoomLimits = RoomLimits()
    free_bytes: int | None = None
    is_short: bool = False
    is_mended: bool = False
    """Whether it was short until now: a server that has met a full disk is to be started again."""

    def seen(self, free_bytes: int) -> DiskRoom:
        limit = self.limits.enough_bytes if self.is_short else self.limits.low_bytes
        short = free_bytes < limit
        return DiskRoom(self.limits, free_bytes, short, self.is_short and not short)


def free_bytes(folder: Path) -> int:
    """0 where no more files can be made."""
    found = os.statvfs(folder)
    return 0 if found.f_files and not found.f_favail else found.f_bavail * found.f_frsize
