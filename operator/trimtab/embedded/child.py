"""A child process in a group of its own: logs to a file, SIGTERM then SIGKILL at its end, never outlives its owner."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.embedded.reaper import Reaper

_REAPER = Reaper()


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run. `environment` is the whole environment of the child: nothing is inherited by accident."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    log_file: Path
    folder: Path


class Child:
    """One incarnation of a command."""

    def __init__(self, command: Command) -> None:
        command.log_file.parent.mkdir(parents=True, exist_ok=True)
        with command.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                list(command.arguments),
                env=dict(command.environment),
                cwd=command.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._group_ended = False
        _REAPER.watch(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, or None when it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """SIGTERM to the leader; the group is for `kill`."""
        if self.alive:
            self._process.terminate()

    def stop(self, *, grace_s: float) -> None:
        """SIGTERM to the leader, SIGKILL to whatever of the group is left after the grace period."""
        self.terminate()
        self.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait for the leader to be gone. Once: its number may be another's later."""
        if self._group_ended:
            return
        self._group_ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        _REAPER.forget(self.pid)


def log_tail(path: Path, *, lines: int = 20, since: int = 0) -> str:
    """The last lines of a log, for an error message; of those from byte `since` on."""
    try:
        with path.open("rb") as log:
            log.seek(max(since, log.seek(0, os.SEEK_END) - 16_384))
            content = log.read()
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(content.decode(errors="replace").splitlines()[-lines:])
