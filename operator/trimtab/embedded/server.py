"""What every embedded server has in common: a data folder, credentials and ports that outlive a restart, a readiness
probe, and supervision that brings it back after a crash.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

import structlog

from trimtab.embedded.child import Child, Command, log_tail
from trimtab.embedded.ports import free_ports, is_free
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.durable_files import replace_file
from trimtab.fabric.restarts import RestartPolicy

_log = structlog.get_logger(__name__)

RESTARTS = RestartPolicy(backoff=FullJitter(base_s=0.4, cap_s=10.0), stable_s=30.0)


class ServerStartError(RuntimeError):
    """The server did not become ready; the message carries the end of its log."""


class DataFolderInUseError(RuntimeError):
    """Another process runs a server on the same data folder."""


class EmbeddedServer(ABC):
    """One server process on loopback, restarted when it dies unless `supervise` is off.

    `start` returns when the server answers. `kill` ends the process as a crash would. `stop` ends it for good; `start`
    may be called again and finds the same data, ports and credentials.
    """

    name: str
    port_names: tuple[str, ...]
    start_timeout_s = 30.0
    stop_grace_s = 10.0

    def __init__(self, data_folder: Path, *, supervise: bool = True, restarts: RestartPolicy = RESTARTS) -> None:
        self.data_folder = data_folder.resolve()
        self.log_file = self.data_folder / f"{self.name}.log"
        self.restarts = 0
        self._supervise = supervise
        self._restart_policy = restarts
        self._child: Child | None = None
        self._supervisor: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock_file: IO[bytes] | None = None
        self.ports: dict[str, int] = {}
        self.password = ""

    @abstractmethod
    def command(self) -> Command:
        """What to run, given `self.ports` and `self.password`; may write configuration files."""

    @abstractmethod
    def probe(self) -> bool:
        """Whether the server serves; False or ConnectionError/OSError while it does not yet."""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.alive else None

    def start(self) -> Self:
        if self.pid is not None:
            return self
        self.data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_data_folder()
        try:
            self._load_identity()
            self._stopping.clear()
            self._child = Child(self.command())
            self._wait_ready(self._child)
        except BaseException:
            self.stop()
            raise
        if self._supervise:
            self._supervisor = threading.Thread(target=self._keep_running, name=f"supervise-{self.name}", daemon=True)
            self._supervisor.start()
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash would: the supervisor, if any, starts it again."""
        if self._child is not None:
            self._child.kill()

    def restart(self) -> None:
        """Ends the process in good order; the supervisor starts it again, with the same data, ports and credentials."""
        if self._child is not None:
            self._child.terminate()

    def stop(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.stop(grace_s=self.stop_grace_s)
        if self._supervisor is not None:
            self._supervisor.join(self.start_timeout_s)
            self._supervisor = None
        if self._child is not None:
            # The supervisor may have been in the middle of a restart when the first stop ended the older child.
            self._child.stop(grace_s=self.stop_grace_s)
            self._child = None
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lock_data_folder(self) -> None:
        if self._lock_file is not None:
            return
        lock = (self.data_folder / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise DataFolderInUseError(
                f"{self.name}: another process runs on the data folder {self.data_folder};"
                " stop it, or give this one a folder of its own"
            ) from None
        # The child inherits nothing: a lock that survived in it would outlive this process.
        os.set_inheritable(lock.fileno(), False)
        self._lock_file = lock

    def _load_identity(self) -> None:
        """Ports and password as they were, so that clients reconnect; a new port in place of each that others took."""
        path = self.data_folder / "identity.json"
        identity = json.loads(path.read_text()) if path.exists() else {}
        ports: dict[str, int] = identity.get("ports", {})
        missing = [name for name in self.port_names if name not in ports or not is_free(ports[name])]
        chosen = dict(zip(missing, free_ports(len(missing)), strict=True))
        self.ports = {name: chosen.get(name) or ports[name] for name in self.port_names}
        self.password = str(identity.get("password") or secrets.token_urlsafe(24))
        replace_file(path, json.dumps({"ports": self.ports, "password": self.password}).encode(), mode=0o600)

    def _wait_ready(self, child: Child) -> None:
        poll_until(
            self.answers,
            timeout_s=self.start_timeout_s,
            give_up=lambda: not child.alive or self._stopping.is_set(),
            failure=lambda: ServerStartError(
                f"{self.name} {_what_went_wrong(child, self.start_timeout_s)};"
                f" end of its log:\n{log_tail(self.log_file)}"
            ),
        )

    def answers(self) -> bool:
        """Whether the server serves now."""
        try:
            return self.probe()
        except (ConnectionError, OSError):
            return False

    def _keep_running(self) -> None:
        crashes = 0
        while not self._stopping.is_set() and self._child is not None:
            started = time.monotonic()
            exit_code = self._child.wait()
            if self._stopping.is_set():
                return
            now = time.monotonic()
            again = self._restart_policy.after(crashes, exit_code=exit_code, lived_s=now - started, now=now)
            if again is None:
                _log.error("embedded_server_given_up", server=self.name, exit_code=exit_code)
                return
            crashes, delay = again.crashes, again.wait_s(now)
            _log.warning("embedded_server_died", server=self.name, exit_code=exit_code, again_in_s=round(delay, 2))
            self._child.kill()  # what is left of its group
            if self._stopping.wait(delay):
                return
            try:
                self._child = Child(self.command())
            except OSError as error:
                # No room for its files, or no process to be had: that passes.
                _log.warning("embedded_server_not_started", server=self.name, error=str(error))
                continue
            self.restarts += 1


def _what_went_wrong(child: Child, waited_s: float) -> str:
    if child.exit_code is not None:
        return f"exited with code {child.exit_code} before it was ready"
    return f"did not become ready within {waited_s:.0f} s"


def poll_until(
    condition: Callable[[], bool],
    *,
    timeout_s: float,
    failure: Callable[[], Exception],
    give_up: Callable[[], bool] = lambda: False,
    interval_s: float = 0.05,
) -> None:
    """Poll a condition; raise what `failure` makes when the time is over or `give_up` says that it is hopeless."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if give_up() or time.monotonic() > deadline:
            raise failure()
        time.sleep(interval_s)
