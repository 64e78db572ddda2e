"""How an episode fails by name. The name is what trajectories, metrics and heartbeats call it; none has a reward."""

from __future__ import annotations

import re
from traceback import FrameSummary
from typing import Any, ClassVar

_KIND = re.compile(r"\A[a-z][a-z0-9_.-]{0,63}\Z")


def is_kind(text: object) -> bool:
    """Whether messages and metrics can carry it as the kind of a failure."""
    return isinstance(text, str) and _KIND.match(text) is not None


class WorkflowError(RuntimeError):
    """The workflow asked for something that cannot be. Subclasses give the failure a `kind` of their own."""

    kind: ClassVar[str] = "workflow-error"

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # Found out when the class is imported: a failure whose kind no message can carry could never be published.
        if not is_kind(cls.kind):
            raise TypeError(
                f"{cls.__name__}.kind is {cls.kind!r}: use up to 64 small letters, digits, '.', '_' or '-', "
                "beginning with a letter"
            )


def first_cause(error: Exception) -> Exception:
    """The error itself, or the first in a group: what a role's failure becomes in a TaskGroup of the workflow's."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


class PromptUnusable(WorkflowError):
    """The prompt itself is wrong, so no attempt at it can go better: it is quarantined without another."""

    kind = "task-refused"


class WorkflowHung(WorkflowError):
    """Its time was over. `waited_at` are the calls that it was in."""

    kind = "episode-timeout"

    def __init__(self, message: str, waited_at: list[FrameSummary]) -> None:
        super().__init__(message)
        self.waited_at = waited_at


class NoRoom(WorkflowError):
    """A conversation was to go on beyond its limits."""

    kind = "no-room"
