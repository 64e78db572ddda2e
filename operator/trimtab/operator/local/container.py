"""One container of a pod as a process of this machine: its restarts with backoff, its end, and why it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable

import structlog

from trimtab.embedded.child import Child, Command, log_tail
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.fabric.restarts import RestartPolicy
from trimtab.operator.plan.pods import ContainerPlan, Restart
from trimtab.operator.plan.troubles import log_sentence

_log = structlog.get_logger(__name__)
_TAIL_LINES = 200


class LocalContainer:
    """One container's process, started again by itself when the pod says so."""

    def __init__(
        self,
        plan: ContainerPlan,
        command: Command,
        *,
        restart: Restart,
        clock: Callable[[], float],
        restarts: RestartPolicy,
    ) -> None:
        self.plan = plan
        self._command = command
        self._restart = restart
        self._clock = clock
        self._log_begin = 0
        self._child = self._begun()
        self._started = clock()
        self._restart_policy = restarts
        self._restart_at: float | None = None
        self._crashes = 0
        self._terminated = False
        self.restarts = 0
        self.died_at: float | None = None
        self.died_of = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child.alive else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or is about to be started again."""
        return None if self._restart is Restart.ALWAYS else self._child.exit_code

    @property
    def misconfigured(self) -> bool:
        return self._child.exit_code == EXIT_MISCONFIGURED

    def last_words(self) -> str:
        """Why it ended, as far as its log tells; of this incarnation only."""
        code = self._child.exit_code
        how = f"exited with {code}" if code is None or code >= 0 else f"was killed by {_signal_name(-code)}"
        said = log_sentence(log_tail(self._command.log_file, lines=_TAIL_LINES, since=self._log_begin))
        return f"{self.plan.name} {how}" + (f": {said}" if said else "")

    def _begun(self) -> Child:
        log = self._command.log_file
        self._log_begin = log.stat().st_size if log.exists() else 0
        return Child(self._command)

    def tend(self) -> None:
        """Start it again if it has died and its backoff is over."""
        if self._restart is Restart.NEVER or self._child.alive:
            return
        now = self._clock()
        if self._restart_at is None:
            if not self._plan_restart(self._child.exit_code, lived_s=now - self._started, now=now):
                return
            self.died_at, self.died_of = now, self.last_words()
            _log.warning("container_died", container=self.plan.name, exit_code=self._child.exit_code)
            self._child.kill()  # what is left of its process group
        elif now >= self._restart_at:
            try:
                self._child = self._begun()
            except OSError as error:
                # No process or no memory to be had just now: that passes, and the other pods must live on.
                _log.warning("container_not_started", container=self.plan.name, error=str(error))
                self._plan_restart(None, lived_s=0.0, now=now)
                return
            self._started, self._restart_at = now, None
            self.restarts += 1

    def _plan_restart(self, exit_code: int | None, *, lived_s: float, now: float) -> bool:
        again = self._restart_policy.after(self._crashes, exit_code=exit_code, lived_s=lived_s, now=now)
        if again is not None:
            self._restart_at, self._crashes = again.at, again.crashes
        return again is not None

    def terminate(self) -> None:
        """Once: a second SIGTERM is how people say that they do not want to wait."""
        if not self._terminated:
            self._terminated = True
            self._restart = Restart.NEVER
            self._child.terminate()

    def kill(self) -> None:
        self._restart = Restart.NEVER
        self._child.kill()

    @property
    def gone(self) -> bool:
        return not self._child.alive


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
