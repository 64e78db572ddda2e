"""The failure that people should look at first: the newest, with the pod it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from trimtab.api.conditions import LastError
from trimtab.operator.conditions import moment
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.troubles import PASSING

MISCONFIGURED = "Misconfigured"
_MAX_MESSAGE = 1024
_HEAD = 256


def latest_error(pods: Sequence[ObservedPod], *, now: float) -> LastError | None:
    """Of pods that failed by themselves, and of those that go on after one of their containers did. None when none
    has."""
    failed = [
        pod
        for pod in pods
        if (pod.phase is Phase.FAILED or pod.misconfigured or pod.crashed_at is not None) and not pod.stopping
    ]
    if not failed:
        return None
    pod = max(failed, key=lambda pod: (pod.misconfigured, _ended(pod, now=now), pod.name))
    return LastError(
        time=moment(_ended(pod, now=now)),
        reason=_reason(pod),
        message=_shortened(pod.message),
        pod=pod.name,
        container=pod.failed_container,
        exit_code=pod.exit_code,
    )


def error_to_tell(pods: Sequence[ObservedPod], before: LastError | None, *, now: float) -> LastError | None:
    """The newest of what has failed and of what keeps pods from running now. Without either, what failed before stays;
    what only kept pods waiting, and no longer does, goes."""
    waiting = [
        LastError(
            time=moment(pod.trouble.since),
            reason=pod.trouble.reason,
            message=_shortened(pod.trouble.message),
            pod=pod.name,
            container=pod.trouble.container,
            exit_code=pod.exit_code,
        )
        for pod in pods
        if pod.trouble is not None and pod.alive and not pod.misconfigured
    ]
    return newest([latest_error(pods, now=now), *waiting], before)


def newest(errors: Iterable[LastError | None], before: LastError | None) -> LastError | None:
    """Of what fails now and of what was said before, as far as that lasts. Of two of the same second the one that still
    holds, because it is why the other has not mended itself; and what no restart mends before all others."""
    known = [error for error in errors if error is not None]
    now = max(known, key=lambda error: (error.reason == MISCONFIGURED, *_order(error)), default=None)
    kept = before if before is not None and before.reason not in PASSING else None
    if now is None or kept is None:
        return now or kept
    return kept if kept.time > now.time and now.reason != MISCONFIGURED else now


def _order(error: LastError) -> tuple[datetime, bool, str]:
    return error.time, error.reason in PASSING, error.pod or ""


def _reason(pod: ObservedPod) -> str:
    if pod.misconfigured:
        return MISCONFIGURED
    if pod.disrupted:
        return "Disrupted"
    return pod.killed_by or ("PodFailed" if pod.phase is Phase.FAILED else "ContainerFailed")


def _shortened(message: str) -> str:
    """What happened is said at the beginning, and why at the end of a log."""
    if len(message) <= _MAX_MESSAGE:
        return message
    return f"{message[:_HEAD]} … {message[len(message) - _MAX_MESSAGE + _HEAD + 3 :]}"


def _ended(pod: ObservedPod, *, now: float) -> float:
    if pod.finished_at is not None:
        return pod.finished_at
    return now if pod.crashed_at is None else pod.crashed_at
