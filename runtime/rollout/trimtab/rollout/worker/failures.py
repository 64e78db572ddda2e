"""Why a group failed, and how the failure is named and described outside the process."""

from __future__ import annotations

from collections import Counter

from trimtab.fabric.logs import REDACTOR
from trimtab.rollout.engines.contract import EngineError
from trimtab.rollout.workflows.errors import PromptUnusable, WorkflowError, first_cause, is_kind
from trimtab.rollout.workflows.source_location import WorkflowSource

_MAX_CHARS = 4000
_MAX_KINDS = 100
OTHER_KINDS = "other-kinds"


class EpisodeFailed(RuntimeError):
    """An episode failed. `kind` is the name of the failure in trajectories and metrics."""

    def __init__(self, kind: str, message: str, *, where: str = "") -> None:
        """`where` is the line of the user's code at which it failed."""
        super().__init__(message)
        # A user's class is checked when it is defined, but an object of it may still carry another kind.
        self.kind = kind if is_kind(kind) else WorkflowError.kind
        self.where = where

    @property
    def text(self) -> str:
        """The message as it may leave the process: secrets redacted, cut to a limit, and valid UTF-8. The error is a
        user's and may contain anything.
        """
        return REDACTOR.text(str(self)).encode("utf-8", "replace").decode("utf-8")[:_MAX_CHARS]


class TaskRefused(EpisodeFailed):
    """The task itself is wrong: no attempt at it can go better."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__("task-refused", message, where=where)


def failure_of(error: Exception, source: WorkflowSource) -> EpisodeFailed:
    """The failure of an episode that ended with this error. `source` is where the workflow's code lies."""
    cause = first_cause(error)
    where = source.location_of(cause)
    if isinstance(cause, PromptUnusable):
        return TaskRefused(_message(cause), where=where)
    if isinstance(cause, EngineError | WorkflowError):
        return EpisodeFailed(cause.kind, _message(cause), where=where)
    kind = "out-of-memory" if isinstance(cause, MemoryError) else WorkflowError.kind
    return EpisodeFailed(kind, f"{type(cause).__name__}: {_message(cause)}", where=where)


def _message(error: Exception) -> str:
    """The error's text. A user's `__str__` may itself raise."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"(its text cannot be had: {type(broken).__name__})"


class FailureTally:
    """Counts failures by kind. After the first hundred kinds the others are counted together: code that makes up kinds
    must not swell a metric's labels and the heartbeat.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, kind: str) -> str:
        """The name under which it was counted."""
        counted = kind if kind in self.counts or len(self.counts) < _MAX_KINDS else OTHER_KINDS
        self.counts[counted] += 1
        return counted
