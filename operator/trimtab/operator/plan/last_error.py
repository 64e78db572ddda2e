"""The failure that people should look at first: the newest, with the pod it came from."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.conditions import LastError
from trimtab.operator.plan.conditions import moment
from trimtab.operator.plan.pods import ObservedPod, Phase

_MAX_MESSAGE = 1024
_HEAD = 128


def latest_error(pods: Sequence[ObservedPod], *, now: float) -> LastError | None:
    """Of pods that failed by themselves. None when none has."""
    failed = [pod for pod in pods if (pod.phase is Phase.FAILED or pod.misconfigured) and not pod.stopping]
    if not failed:
        return None
    pod = max(failed, key=lambda pod: (pod.misconfigured, _ended(pod, now=now), pod.name))
    reason = "Misconfigured" if pod.misconfigured else "Disrupted" if pod.disrupted else "PodFailed"
    return LastError(
        time=moment(_ended(pod, now=now)),
        reason=reason,
        message=_shortened(pod.message),
        pod=pod.name,
        exit_code=pod.exit_code,
    )


def _shortened(message: str) -> str:
    """What happened is said at the beginning, and why at the end of a log."""
    if len(message) <= _MAX_MESSAGE:
        return message
    return f"{message[:_HEAD]} … {message[len(message) - _MAX_MESSAGE + _HEAD + 3 :]}"


def _ended(pod: ObservedPod, *, now: float) -> float:
    return now if pod.finished_at is None else pod.finished_at
