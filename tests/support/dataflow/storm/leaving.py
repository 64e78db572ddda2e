"""On a busy machine a process may be told to leave before it listens. SIGTERM waits for it until then: what it would
end at once has nothing to show how it leaves.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def hold_sigterm() -> None:
    """In the process from which others are forked: they are born so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def on_sigterm(leave: Callable[[], object]) -> None:
    """Of the running loop, from now on, and of one that has come already."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
    release_sigterm()
