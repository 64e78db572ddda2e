"""What keeps a pod from running, as people are told it: a word, a sentence with the fix, and since when.

A trouble is of the present. It is said as long as it lasts and goes with it; what has failed stays said, as the last
error. What a container said before it failed comes from the end of its log: pods log JSON lines, and people read
statuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.operator.untrusted import printable

if TYPE_CHECKING:
    from trimtab.operator.plan.pods import ObservedPod

UNSCHEDULABLE = "Unschedulable"
SCHEDULING_GATED = "SchedulingGated"
IMAGE_PULL = "ImagePullBackOff"
CRASH_LOOP = "CrashLoopBackOff"
CONFIGURATION = "CreateContainerConfigError"
CONTAINER_NOT_STARTED = "ContainerNotStarted"
NODE_NOT_READY = "NodeNotReady"
POD_REFUSED = "PodRefused"
PASSING = frozenset(
    (
        UNSCHEDULABLE,
        SCHEDULING_GATED,
        IMAGE_PULL,
        CRASH_LOOP,
        CONFIGURATION,
        CONTAINER_NOT_STARTED,
        NODE_NOT_READY,
        POD_REFUSED,
    )
)
"""Reasons that are said only as long as they hold."""
_MAX_TEXT = 512
_PLAIN_LINES = 3
_MAX_CHARS = 2000
_LEVELS = ("error", "critical")
# In the order in which they say most.
_DETAILS = ("reason", "exception", "error", "why", "errors")
_SPEAKS_FOR_ITSELF = ("job_misconfigured", "uncaught exception", "uncaught exception in a thread")
"""What happened is in the detail; the event only says how it was noticed."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    reason: str
    message: str
    since: float
    container: str | None = None


def told(pods: Sequence[ObservedPod]) -> str:
    """The first of the troubles in a sentence, and how many pods have one; empty when none has."""
    troubled = sorted((pod for pod in pods if pod.trouble is not None and pod.alive), key=lambda pod: pod.name)
    if not troubled or troubled[0].trouble is None:
        return ""
    others = len(troubled) - 1
    more = f" ({others} more {'pod waits' if others == 1 else 'pods wait'})" if others else ""
    return f"{troubled[0].name}: {troubled[0].trouble.message}{more}"


def one_line(text: str, *, limit: int = _MAX_TEXT) -> str:
    """What others have written, fit for a status: no line breaks or control characters, and not without end."""
    return " ".join(printable(text, limit=limit).split())


def log_sentence(tail: str) -> str:
    """The last error that the log tells of. One that tells of none has its last lines of plain text shown, which is
    where interpreters and servers complain; lines that only say what was done explain no failure.
    """
    plain: list[str] = []
    said = ""
    for line in tail.splitlines():
        entry = _entry(line)
        if entry is None:
            plain.append(line.rstrip())
        elif entry.get("level") in _LEVELS:
            said, plain = _sentence(entry), []
    if said:
        return said[:_MAX_CHARS]
    return "\n".join([line for line in plain if line][-_PLAIN_LINES:])[-_MAX_CHARS:]


def _entry(line: str) -> Mapping[str, Any] | None:
    """A line of our logs; None for any other."""
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("event"), str) else None


def _sentence(entry: Mapping[str, Any]) -> str:
    event = str(entry["event"])
    detail = next((_flat(name, entry[name]) for name in _DETAILS if entry.get(name)), "")
    if not detail:
        return event
    return detail if event in _SPEAKS_FOR_ITSELF else f"{event.replace('_', ' ')}: {detail}"


def _flat(name: str, value: object) -> str:
    """Of a traceback, its last line, which names the exception; groups draw a frame around theirs."""
    if name != "exception":
        return str(value)
    lines = [line.strip(" |+-") for line in str(value).splitlines()]
    return next((line for line in reversed(lines) if line), "")
