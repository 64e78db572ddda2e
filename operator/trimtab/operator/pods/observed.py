"""What a plan wants to know of a pod, read from the pod's JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.api import labels
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.kube.resources import Object
from trimtab.kube.timestamps import epoch
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.troubles import log_sentence, one_line
from trimtab.operator.pods.gang import is_gated
from trimtab.operator.pods.troubles import OUT_OF_MEMORY, ended, trouble_of
from trimtab.operator.reconcile.ownership import is_leaving
from trimtab.operator.untrusted import whole_number

_LONGEST_LOG = 4096
_WORD = re.compile(r"[A-Za-z]{1,64}")
_PHASES = {phase.value: phase for phase in Phase}


def observed_pod(pod: Object) -> ObservedPod:
    """Without what the bus has heard of it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    own = metadata.get("labels") or {}
    conditions = {condition["type"]: condition.get("status") for condition in status.get("conditions") or ()}
    ready = conditions.get("Ready") == "True"
    # A node that is out of reach leaves its pods in phase Unknown: they may well run.
    phase = _PHASES.get(str(status.get("phase") or "Pending"), Phase.RUNNING)
    ends = list(_ends(status))
    failures = [end for end in ends if end["exitCode"] != 0]
    misconfigured = [end for end in failures if end["exitCode"] == EXIT_MISCONFIGURED]
    told = _failure_to_tell(misconfigured or failures, over=phase is Phase.FAILED)
    over = phase in (Phase.SUCCEEDED, Phase.FAILED)
    return ObservedPod(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        phase=phase,
        owner=own.get(labels.OWNER, ""),
        attempt=whole_number(own.get(labels.ATTEMPT)) or 0,
        revision=own.get(labels.REVISION, ""),
        gated=is_gated(pod),
        scheduled=bool(pod["spec"].get("nodeName")),
        node=pod["spec"].get("nodeName"),
        ready=ready,
        ready_at=_since(status, "Ready") if ready else None,
        created_at=epoch(metadata["creationTimestamp"]),
        finished_at=_finished_at(metadata, ends) if over else None,
        stopping=is_leaving(pod),
        disrupted=conditions.get("DisruptionTarget") == "True",
        misconfigured=bool(misconfigured),
        exit_code=None if told is None else int(told["exitCode"]),
        message=_message(status, told),
        killed_by=_killed_by(status, told),
        failed_container=None if told is None else str(told["container"]),
        crashed_at=None if told is None or over or not told.get("finishedAt") else epoch(told["finishedAt"]),
        trouble=None if is_leaving(pod) else trouble_of(pod),
    )


def _failure_to_tell(failures: Sequence[dict[str, Any]], *, over: bool) -> dict[str, Any] | None:
    """Of a pod that is over, that of a main container, after which sidecars are killed. Of one that goes on, the
    newest."""
    if over or not failures:
        return next(iter(failures), None)
    return max(failures, key=lambda end: str(end.get("finishedAt") or ""))


def _since(status: Mapping[str, Any], kind: str) -> float | None:
    times = [entry.get("lastTransitionTime") for entry in status.get("conditions") or () if entry["type"] == kind]
    return epoch(times[0]) if times and times[0] else None


def _ends(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How containers ended, also those that have been started again since."""
    for entry in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        for state in ("state", "lastState"):
            if end := (entry.get(state) or {}).get("terminated"):
                yield {"container": entry["name"], **end}


def _finished_at(metadata: Mapping[str, Any], ends: list[dict[str, Any]]) -> float:
    """Always the same for a pod that has ended, as plans count backoffs from it. One that never ran, such as one
    rejected by its node, ended when it began."""
    return max(
        (epoch(end["finishedAt"]) for end in ends if end.get("finishedAt")),
        default=epoch(metadata["creationTimestamp"]),
    )


def _message(status: Mapping[str, Any], told: Mapping[str, Any] | None) -> str:
    """First what was done to the pod, then what its container was killed by, then the end of its log."""
    verdict = one_line(str(status.get("message") or status.get("reason") or ""))
    if not verdict:
        taken = [entry for entry in status.get("conditions") or () if entry["type"] == "DisruptionTarget"]
        verdict = one_line(str(taken[0].get("message") or "")) if taken and taken[0].get("status") == "True" else ""
    if told is None:
        return verdict
    said = one_line(log_sentence(str(told.get("message") or "")), limit=_LONGEST_LOG)
    if not said and told.get("reason") != OUT_OF_MEMORY:
        said = str(told.get("reason") or "")
    how = ended(str(told["container"]), told)
    log = f"; it said: {said}" if told.get("reason") == OUT_OF_MEMORY else f": {said}"
    parts = (verdict, how + (log if said else ""))
    return "; ".join(part for part in parts if part)


def _killed_by(status: Mapping[str, Any], told: Mapping[str, Any] | None) -> str:
    if told is not None and told.get("reason") == OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    word = str(status.get("reason") or "")
    return word if _WORD.fullmatch(word) else ""
