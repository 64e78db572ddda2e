"""A pod's status from the states of its containers: phase, conditions and container statuses as of a kubelet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.devcluster.container.restarts import RestartPolicy
from trimtab.devcluster.container.state import AFTER_INIT, ContainerState, Running, Terminated, Waiting
from trimtab.devcluster.pod.spec import Role, containers, is_finished, of_role
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.resources import Object
from trimtab.kube.timestamps import timestamp


@dataclass(frozen=True, kw_only=True)
class PodFailure:
    """Why the pod as a whole has failed, whatever its containers did."""

    reason: str
    message: str


def status_of(
    pod: Object,
    states: Mapping[str, ContainerState],
    *,
    now: float,
    failure: PodFailure | None = None,
    stopped: bool = False,
) -> dict[str, Any]:
    """The part of the status that is the node's. A finished pod keeps its phase for ever. `stopped`: nothing of it will
    be started again, whatever its restart policy."""
    policy = RestartPolicy.NEVER if stopped else RestartPolicy(pod["spec"].get("restartPolicy") or "Always")
    phase = "Failed" if failure is not None else _phase(pod, states, policy=policy)
    old = pod.get("status") or {}
    if is_finished(pod):
        phase = old["phase"]
    status: dict[str, Any] = {
        "phase": phase,
        "hostIP": LOOPBACK,
        "hostIPs": [{"ip": LOOPBACK}],
        "podIP": LOOPBACK,
        "podIPs": [{"ip": LOOPBACK}],
        "startTime": old.get("startTime") or timestamp(now),
        "conditions": _conditions(pod, states, phase=phase, now=now),
        "containerStatuses": _container_statuses(pod, states, roles=(Role.MAIN,)),
    }
    if pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = _container_statuses(pod, states, roles=(Role.INIT, Role.SIDECAR))
    if failure is not None:
        status |= {"reason": failure.reason, "message": failure.message}
    return status


def initialized(pod: Object, states: Mapping[str, ContainerState]) -> bool:
    """All init containers have succeeded and all sidecars have been started."""
    for role, container in containers(pod):
        state = states.get(container["name"], AFTER_INIT)
        if role is Role.INIT and (state.ended is None or state.ended.exit_code != 0):
            return False
        if role is Role.SIDECAR and not (state.started or state.ever_ran):
            return False
    return True


def _phase(pod: Object, states: Mapping[str, ContainerState], *, policy: RestartPolicy) -> str:
    if not initialized(pod, states):
        broken = any(
            (end := states[container["name"]].ended) is not None and end.exit_code != 0
            for container in of_role(pod, Role.INIT)
            if container["name"] in states
        )
        return "Failed" if broken and policy is RestartPolicy.NEVER else "Pending"
    mains = [states.get(container["name"], AFTER_INIT) for container in of_role(pod, Role.MAIN)]
    if any(not state.ever_ran for state in mains):
        return "Pending"
    ends = [state.ended for state in mains]
    if policy is RestartPolicy.ALWAYS or any(end is None for end in ends):
        return "Running"
    if all(end is not None and end.exit_code == 0 for end in ends):
        return "Succeeded"
    return "Failed" if policy is RestartPolicy.NEVER else "Running"


def _conditions(pod: Object, states: Mapping[str, ContainerState], *, phase: str, now: float) -> list[dict[str, Any]]:
    old = {condition["type"]: condition for condition in (pod.get("status") or {}).get("conditions") or ()}
    finished = phase in ("Succeeded", "Failed")
    unready = [
        container["name"]
        for role, container in containers(pod)
        if role is not Role.INIT and not states.get(container["name"], AFTER_INIT).ready
    ]
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed = [gate for gate in gates if old.get(gate, {}).get("status") != "True"]
    containers_ready = not unready and not finished
    if finished:
        why = {"reason": f"Pod{phase}" if phase == "Failed" else "PodCompleted"}
    else:
        why = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(unready)}]"}
    gated = {"reason": "ReadinessGatesNotReady", "message": f"conditions not true: [{' '.join(closed)}]"}
    done = initialized(pod, states)
    ready = containers_ready and not closed
    wanted = [
        ("PodScheduled", True, {}),
        ("Initialized", done, {} if done else {"reason": "ContainersNotInitialized"}),
        ("ContainersReady", containers_ready, {} if containers_ready else why),
        ("Ready", ready, {} if ready else gated if containers_ready else why),
    ]
    return [_condition(kind, holds, details, old=old.get(kind), now=now) for kind, holds, details in wanted]


def _condition(
    kind: str, holds: bool, details: Mapping[str, str], *, old: Mapping[str, Any] | None, now: float
) -> dict[str, Any]:
    status = "True" if holds else "False"
    since = old["lastTransitionTime"] if old is not None and old.get("status") == status else timestamp(now)
    # Null where there is none: a merge would otherwise keep the reason of the condition's earlier status.
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": since,
        "reason": details.get("reason"),
        "message": details.get("message"),
    }


def _container_statuses(
    pod: Object, states: Mapping[str, ContainerState], *, roles: Sequence[Role]
) -> list[dict[str, Any]]:
    return [
        _container_status(pod, container, role, states.get(container["name"], AFTER_INIT))
        for role, container in containers(pod)
        if role in roles
    ]


def _container_status(pod: Object, container: Mapping[str, Any], role: Role, state: ContainerState) -> dict[str, Any]:
    succeeded = state.ended is not None and state.ended.exit_code == 0
    instance = f"process://{pod['metadata']['uid']}/{container['name']}/{state.restarts}"
    return {
        "name": container["name"],
        "image": container.get("image") or "",
        "imageID": "",
        "containerID": instance if state.ever_ran else "",
        "restartCount": state.restarts,
        "ready": succeeded if role is Role.INIT else state.ready,
        "started": state.started,
        "state": _state(state.state),
        "lastState": {} if state.last is None else _state(state.last),
    }


def _state(state: Waiting | Running | Terminated) -> dict[str, Any]:
    match state:
        case Waiting():
            return {"waiting": _filled(reason=state.reason, message=state.message)}
        case Running():
            return {"running": {"startedAt": timestamp(state.started_at)}}
        case Terminated():
            return {
                "terminated": _filled(
                    exitCode=state.exit_code,
                    reason=state.reason,
                    message=state.message,
                    startedAt=timestamp(state.started_at),
                    finishedAt=timestamp(state.finished_at),
                )
            }


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value != ""}
