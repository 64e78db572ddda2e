"""What keeps a pod from running, as people are told it: a word, a sentence with the fix, and since when.

A trouble is of the present. It is said as long as it lasts and goes with it; what has failed stays said, as the last
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
