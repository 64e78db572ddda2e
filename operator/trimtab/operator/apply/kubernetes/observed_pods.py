"""What a plan wants to know of a pod, read from the pod's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.api import labels
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.kube.resources import Object
from trimtab.kube.timestamps import epoch
from trimtab.operator.apply.kubernetes.ownership import is_leaving
from trimtab.operator.plan.pods import ObservedPod, Phase

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
    told = next(iter(misconfigured or failures), None)
    return ObservedPod(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        phase=phase,
        owner=own.get(labels.OWNER, ""),
        attempt=_number(own.get(labels.ATTEMPT)),
        revision=own.get(labels.REVISION, ""),
        scheduled=bool(pod["spec"].get("nodeName")),
        ready=ready,
        ready_at=_since(status, "Ready") if ready else None,
        created_at=epoch(metadata["creationTimestamp"]),
        finished_at=_finished_at(metadata, ends) if phase in (Phase.SUCCEEDED, Phase.FAILED) else None,
        stopping=is_leaving(pod),
        disrupted=conditions.get("DisruptionTarget") == "True",
        misconfigured=bool(misconfigured),
        exit_code=None if told is None else int(told["exitCode"]),
        message=_message(status, told),
    )


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
    if told is None:
        return str(status.get("message") or status.get("reason") or "")
    said = str(told.get("message") or told.get("reason") or "").strip()
    return f"{told['container']} exited with {told['exitCode']}" + (f": {said}" if said else "")


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
