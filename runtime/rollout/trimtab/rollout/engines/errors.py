"""What can go wrong between us and an engine, by what the caller can do about it."""

from __future__ import annotations


class EngineError(RuntimeError):
    """Something between us and a generation went wrong; `kind` names it in trajectories and metrics."""

    kind = "engine-error"


class EngineUnavailable(EngineError):
    """Nobody answers, or the connection broke."""

    kind = "engine-unavailable"


class EngineTimeout(EngineError):
    """No answer within the deadline."""

    kind = "engine-timeout"


class EngineOverloaded(EngineError):
    """The engine's queue is full; the same request may succeed later."""

    kind = "engine-overloaded"


class EngineRefused(EngineError):
    """The engine understood and said no: repeating the request will not help."""

    kind = "engine-refused"


def refusal(path: str, status: int, text: str) -> EngineError:
    """What an HTTP status of 400 or more means."""
    if status == 429:
        return EngineOverloaded(f"{path}: {text}")
    if status >= 500:
        return EngineUnavailable(f"{path}: {status} {text}")
    return EngineRefused(f"{path}: {status} {text}")
