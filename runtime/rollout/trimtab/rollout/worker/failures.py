"""Why a group came to nothing, and how that is told outside the process."""

from __future__ import annotations

from collections import Counter

from trimtab.fabric.logs import REDACTOR
from trimtab.rollout.engines.contract import EngineError
from trimtab.rollout.workflows.errors import PromptUnusable, WorkflowError, first_cause, is_kind
from trimtab.rollout.workflows.source_location import WorkflowHome

_MAX_CHARS = 4000
_MAX_KINDS = 100
OTHER_KINDS = "other-kinds"


class EpisodeFailed(RuntimeError):
    """An episode came to nothing. `kind` is what trajectories and metrics call it."""

    def __init__(self, kind: str, message: str, *, where: str = "") -> None:
        """`where` is the line of the user's code at which it failed."""
        super().__init__(message)
        # A class of a user's is checked when it is made. An object of it may still say something else of itself.
        self.kind = kind if is_kind(kind) else WorkflowError.kind
        self.where = where

    @property
    def text(self) -> str:
        """The message as it may leave the process. It is a user's error: it may hold secrets, any length of text, and
        halves of characters that no message can carry.
        """
        return REDACTOR.text(str(self)).encode("utf-8", "replace").decode("utf-8")[:_MAX_CHARS]


class TaskRefused(EpisodeFailed):
    """The task itself is wrong: no attempt at it can go better."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__("task-refused", message, where=where)


def failure_of(error: Exception, home: WorkflowHome) -> EpisodeFailed:
    """What an episode of the workflow that lives there is called when it ended with this error."""
    cause = first_cause(error)
    where = home.place_of(cause)
    if isinstance(cause, PromptUnusable):
        return TaskRefused(_message(cause), where=where)
    if isinstance(cause, EngineError | WorkflowError):
        return EpisodeFailed(cause.kind, _message(cause), where=where)
    kind = "out-of-memory" if isinstance(cause, MemoryError) else WorkflowError.kind
    return EpisodeFailed(kind, f"{type(cause).__name__}: {_message(cause)}", where=where)


def _message(error: Exception) -> str:
    """Also of an error that cannot even say what it is."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"(its text cannot be had: {type(broken).__name__})"


class FailureTally:
    """Counts failures by kind. Of more kinds than anyone could read, as code that makes them up would bring, the later
    ones are counted together: a metric's labels and a heartbeat have to stay small.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, kind: str) -> str:
        """The name under which it was counted."""
        counted = kind if kind in self.counts or len(self.counts) < _MAX_KINDS else OTHER_KINDS
        self.counts[counted] += 1
        return counted
