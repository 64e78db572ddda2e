"""Why a pod does not start or does not go on, read from what scheduler, kubelet and node controller say in its status.

Their words are kept where they help, and the fix is added. Words that change from moment to moment, such as how long a
back-off lasts or which of two names a failed pull has just now, are left out: a status must not change because of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.kube.resources import Object
from trimtab.kube.timestamps import epoch
from trimtab.operator.plan import troubles
from trimtab.operator.plan.troubles import Trouble, one_line
from trimtab.operator.pods.gang import GANG_GATE

OUT_OF_MEMORY = "OOMKilled"
_HARMLESS = ("", "ContainerCreating", "PodInitializing")
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_UNFINISHED = ("Pending", "Running", "Unknown", "")
_PULL_PREFIX = re.compile(r'^Back-off pulling image "[^"]*"(: )?((ErrImagePull|ImagePullBackOff): )?')
_SCHEDULING_FIXES = (
    ("untolerated taint", "tolerate the taint in the template, or remove it from a node"),
    ("were unschedulable", "a node is cordoned: kubectl uncordon it"),
    ("Insufficient", "add nodes, lower resources.requests, or free what others hold"),
    ("Too many pods", "add nodes, or free what others hold"),
    ("node affinity/selector", "change nodeSelector or affinity in the template, or label a node"),
    ("nodeSelector", "change nodeSelector in the template, or label a node"),
    ("ersistent", "make the PersistentVolumeClaim and its volume available"),
)


def trouble_of(pod: Object) -> Trouble | None:
    """None for a pod that is on its way, runs, or has ended."""
    status = pod.get("status") or {}
    if str(status.get("phase") or "") not in _UNFINISHED:
        return None
    conditions = {str(entry["type"]): entry for entry in status.get("conditions") or ()}
    return (
        _unscheduled(pod, conditions.get("PodScheduled") or {})
        or next(_waiting(pod, status), None)
        or _behind_a_lost_node(pod, status, conditions)
    )


def _unscheduled(pod: Object, scheduled: Mapping[str, Any]) -> Trouble | None:
    if pod["spec"].get("nodeName"):
        return None
    gates = [str(gate.get("name")) for gate in pod["spec"].get("schedulingGates") or ()]
    since = _time(scheduled.get("lastTransitionTime"), pod)
    if gates:
        others = ", ".join(gate for gate in gates if gate != GANG_GATE)
        message = f"held back by the scheduling gate {one_line(others)}: whoever set it has to lift it"
        return Trouble(reason=troubles.SCHEDULING_GATED, message=message, since=since) if others else None
    # The API server's own words for a pod behind a gate stay until a scheduler has looked at it.
    if scheduled.get("status") != "False" or scheduled.get("reason") == troubles.SCHEDULING_GATED:
        return None
    said = one_line(str(scheduled.get("message") or scheduled.get("reason") or "")).rstrip(".")
    fixes = [fix for sign, fix in _SCHEDULING_FIXES if sign in said] or ["see kubectl describe pod"]
    message = f"no node fits: {said}; fix: {'; or '.join(dict.fromkeys(fixes))}"
    return Trouble(reason=troubles.UNSCHEDULABLE, message=message, since=since)


def _waiting(pod: Object, status: Mapping[str, Any]) -> Iterator[Trouble]:
    """Of containers that do not start, main ones, init containers and sidecars alike."""
    for entry in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        waiting = (entry.get("state") or {}).get("waiting")
        reason = "" if waiting is None else str(waiting.get("reason") or "")
        if waiting is None or reason in _HARMLESS:
            continue
        name, said = str(entry["name"]), one_line(str(waiting.get("message") or ""))
        since = _time(status.get("startTime"), pod)
        kind = troubles.CONTAINER_NOT_STARTED
        if reason in _IMAGE:
            kind = troubles.IMAGE_PULL
            cause = _PULL_PREFIX.sub("", said)
            message = (
                f"{name} cannot pull its image {one_line(str(entry.get('image') or ''), limit=256)}"
                + (f": {cause}" if cause else "")
                + "; fix: check the image's name and tag, and imagePullSecrets: they must be in the pod's namespace"
            )
        elif reason == "CrashLoopBackOff":
            end = (entry.get("lastState") or {}).get("terminated") or {}
            kind = OUT_OF_MEMORY if end.get("reason") == OUT_OF_MEMORY else troubles.CRASH_LOOP
            since = _time(end.get("finishedAt") or status.get("startTime"), pod)
            times = int(entry.get("restartCount") or 0)
            message = f"{ended(name, end) if end else name} and was started again {times} times; {_fix(pod, name, end)}"
        elif reason == "CreateContainerConfigError":
            kind = troubles.CONFIGURATION
            message = f"{name} cannot be made: {said}; fix: make what its template refers to, or correct the reference"
        else:
            message = f"{name} does not start: {reason}" + (f": {said}" if said else "") + "; fix: correct its template"
        yield Trouble(reason=kind, message=message, since=since, container=name)


def _behind_a_lost_node(
    pod: Object, status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]
) -> Trouble | None:
    """A kubelet never says that all containers are ready and the pod is not, unless a readiness gate is closed: the
    node controller does, which withdraws Ready alone and gives no reason."""
    node, ready = pod["spec"].get("nodeName"), conditions.get("Ready") or {}
    containers_ready = (conditions.get("ContainersReady") or {}).get("status") == "True"
    withdrawn = ready.get("status") == "False" and containers_ready and not pod["spec"].get("readinessGates")
    lost = status.get("phase") == "Unknown" or status.get("reason") == "NodeLost" or ready.get("status") == "Unknown"
    if not node or not (withdrawn or lost or ready.get("reason") == troubles.NODE_NOT_READY):
        return None
    message = (
        f"node {one_line(str(node), limit=253)} is not ready, so nothing is heard of its pods, which may well go on; "
        "fix: see kubectl describe node, or delete the node if it does not come back"
    )
    since = _time(ready.get("lastTransitionTime"), pod)
    return Trouble(reason=troubles.NODE_NOT_READY, message=message, since=since)


def ended(container: str, end: Mapping[str, Any]) -> str:
    """How it ended in a few words. What killed it comes first: the end of a log does not know."""
    code, reason = end.get("exitCode"), str(end.get("reason") or "")
    if reason == OUT_OF_MEMORY:
        return f"{container} was OOMKilled (exit code {code}): no memory was left; fix: raise resources.limits.memory"
    return f"{container} exited with {code}"


def _fix(pod: Object, container: str, end: Mapping[str, Any]) -> str:
    said = one_line(str(end.get("message") or ""))
    why = f"it said: {said}; " if said else ""
    return f"{why}see kubectl logs {pod['metadata']['name']} -c {container} --previous"


def _time(written: object, pod: Object) -> float:
    """A time of the cluster's own, so that it does not move from one reconcile to the next."""
    return epoch(str(written or pod["metadata"]["creationTimestamp"]))
