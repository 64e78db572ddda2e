"""Why a group came to nothing, and how that is told outside the process."""

from __future__ import annotations

from trimtab.fabric.logs import REDACTOR

_MAX_CHARS = 4000


class EpisodeFailed(RuntimeError):
    """An episode came to nothing. `kind` is what trajectories and metrics call it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def text(self) -> str:
        """The message as it may leave the process. It is a user's error: it may hold secrets, any length of text, and
        halves of characters that no message can carry.
        """
        return REDACTOR.text(str(self)).encode("utf-8", "replace").decode("utf-8")[:_MAX_CHARS]


class TaskRefused(EpisodeFailed):
    """The task itself is wrong: no attempt at it can go better."""

    def __init__(self, message: str) -> None:
        super().__init__("task-refused", message)
