"""What is known of one container: now, its last end, and how often it was started again."""

from __future__ import annotations

from dataclasses import dataclass

SIGKILLED = 137


@dataclass(frozen=True, kw_only=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Running:
    started_at: float


@dataclass(frozen=True, kw_only=True)
class Terminated:
    exit_code: int
    reason: str
    message: str = ""
    started_at: float
    finished_at: float


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    state: Waiting | Running | Terminated
    last: Terminated | None = None
    """How its previous instance ended."""
    restarts: int = 0
    started: bool = False
    """It runs and its startup probe, if it has one, has succeeded."""
    ready: bool = False

    @property
    def running(self) -> bool:
        return isinstance(self.state, Running)

    @property
    def ended(self) -> Terminated | None:
        return self.state if isinstance(self.state, Terminated) else None

    @property
    def ever_ran(self) -> bool:
        return self.last is not None or not isinstance(self.state, Waiting)


CREATING = ContainerState(state=Waiting(reason="ContainerCreating"))
AFTER_INIT = ContainerState(state=Waiting(reason="PodInitializing"))


def end_of(
    *, exit_code: int, started_at: float, finished_at: float, message: str = "", out_of_memory: bool = False
) -> Terminated:
    reason = "OOMKilled" if out_of_memory else "Completed" if exit_code == 0 else "Error"
    return Terminated(
        exit_code=exit_code, reason=reason, message=message, started_at=started_at, finished_at=finished_at
    )
