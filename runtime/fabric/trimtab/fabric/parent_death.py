"""Ties the life of a process to its parent: when the parent dies, even by SIGKILL, the kernel kills the child."""

from __future__ import annotations

import ctypes
import os
import signal

PARENT = "LAUNCHER_PID"
"""The environment variable with the process id of the launcher, for children that a library starts in its stead."""
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, its parent process, dies. Safe between fork and exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the kernel was told


def die_with_launcher() -> None:
    """Die with the launcher that the environment names, if it names one."""
    parent = os.environ.get(PARENT)
    if parent is not None:
        die_with(int(parent))
