"""What becomes of a pod that this node finds as its own and whose processes are not there: the node was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.devcluster.container.restarts import RestartPolicy, starts_again
from trimtab.devcluster.container.state import SIGKILLED, ContainerState, Terminated, Waiting
from trimtab.devcluster.pod.spec import Role, containers
from trimtab.devcluster.pod.status import PodFailure
from trimtab.kube.resources import Object
from trimtab.kube.timestamps import epoch

REASON = "NodeRestarted"
_LOST = "the development node was stopped while it ran"


def resumed(pod: Object, *, now: float) -> tuple[dict[str, ContainerState], PodFailure | None]:
    """From the last written status: the states its containers begin with, and the pod's failure if it may not go on.

    Init containers run once more, as they do wherever a pod's sandbox is made anew.
    """
    policy = RestartPolicy(pod["spec"].get("restartPolicy") or "Always")
    written = (pod.get("status") or {}).get("containerStatuses") or ()
    by_name = {status["name"]: status for status in written}
    states: dict[str, ContainerState] = {}
    lost = []
    for role, container in containers(pod):
        status = by_name.get(container["name"])
        if role is not Role.MAIN or status is None:
            continue
        before = _before(status, now=now)
        if before is None:
            continue
        if before.reason == REASON:
            lost.append(container["name"])
        if starts_again(policy, exit_code=before.exit_code):
            states[container["name"]] = ContainerState(
                state=Waiting(reason="ContainerCreating"), last=before, restarts=int(status["restartCount"]) + 1
            )
        else:
            states[container["name"]] = ContainerState(
                state=before, last=_terminated(status.get("lastState") or {}), restarts=int(status["restartCount"])
            )
    if policy is RestartPolicy.NEVER and lost:
        return states, PodFailure(reason=REASON, message=f"{_LOST}: {', '.join(lost)}; restartPolicy is Never")
    return states, None


def _before(status: Mapping[str, Any], *, now: float) -> Terminated | None:
    """How the container's last instance ended; None if it never had one."""
    state = status.get("state") or {}
    if running := state.get("running"):
        return Terminated(
            exit_code=SIGKILLED, reason=REASON, message=_LOST, started_at=epoch(running["startedAt"]), finished_at=now
        )
    return _terminated(state) or _terminated(status.get("lastState") or {})


def _terminated(state: Mapping[str, Any]) -> Terminated | None:
    end = state.get("terminated")
    if not end:
        return None
    return Terminated(
        exit_code=int(end["exitCode"]),
        reason=str(end.get("reason") or ""),
        message=str(end.get("message") or ""),
        started_at=epoch(end["startedAt"]) if end.get("startedAt") else 0.0,
        finished_at=epoch(end["finishedAt"]) if end.get("finishedAt") else 0.0,
    )
