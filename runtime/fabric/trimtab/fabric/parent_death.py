"""Processes that must not outlive the one that started them, also where that one is killed and can tell nobody."""

from __future__ import annotations

import ctypes
import os
import signal

PARENT = "LAUNCHER_PID"
"""Who starts a process that is to die with it, but has no say in how it is started, leaves its id here."""
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with(parent: int) -> None:
    """The kernel kills this process when `parent`, which has started it, dies. Safe between fork and exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the kernel knew


def die_with_who_asked_for_it() -> None:
    parent = os.environ.get(PARENT)
    if parent is not None:
        die_with(int(parent))
