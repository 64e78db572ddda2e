"""Leaves no orphans: a tiny process that outlives its owner just long enough to end every process group the owner had.

The owner holds the write end of the reaper's standard input and names the groups it starts and stops. However the owner
dies, SIGKILL included, the kernel closes that pipe; the reaper reads end-of-file and takes the remaining groups down.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 3.0


class Reaper:
    """The owner's side; one per process, started with the first child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-E", os.path.abspath(__file__)],  # noqa: PTH100 - as __file__ may be relative
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    # Its own session: a Ctrl-C or a hang-up meant for the owner must not end it first.
                    start_new_session=True,
                )
                atexit.register(_leave, self._process)
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()


def _leave(reaper: subprocess.Popen[bytes]) -> None:
    """At the owner's regular end: let the reaper take down what is left, and be gone before the owner is."""
    assert reaper.stdin is not None
    reaper.stdin.close()
    reaper.wait(2 * GRACE_S)


def _signal_group(group: int, signum: int) -> bool:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap(groups: set[int]) -> None:
    alive = {group for group in groups if _signal_group(group, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE_S
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = {group for group in alive if _signal_group(group, 0)}
    for group in alive:
        _signal_group(group, signal.SIGKILL)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    _reap(groups)


if __name__ == "__main__":
    _main()
