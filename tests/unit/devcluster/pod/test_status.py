"""Phases and conditions from container states, as a kubelet computes them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.container.state import CREATING, ContainerState, Running, Terminated, Waiting, end_of
from trimtab.devcluster.pod.status import PodFailure, status_of

NOW = 1_800_000_000.0


def ended(code: int) -> Terminated:
    return end_of(exit_code=code, started_at=NOW - 5, finished_at=NOW - 1)


RUNNING = ContainerState(state=Running(started_at=NOW - 5), started=True, ready=True)
UNREADY = ContainerState(state=Running(started_at=NOW - 5), started=True)
CRASHED = ContainerState(state=Waiting(reason="CrashLoopBackOff"), last=ended(1))
DONE = ContainerState(state=ended(0))
BROKEN = ContainerState(state=ended(3))


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", [CREATING], "Pending"),
        ("Always", [RUNNING], "Running"),
        ("Always", [RUNNING, CREATING], "Pending"),
        ("Always", [CRASHED], "Running"),
        ("Always", [DONE], "Running"),
        ("OnFailure", [DONE, RUNNING], "Running"),
        ("OnFailure", [DONE, DONE], "Succeeded"),
        ("OnFailure", [DONE, CRASHED], "Running"),
        ("OnFailure", [BROKEN], "Running"),
        ("Never", [BROKEN, RUNNING], "Running"),
        ("Never", [BROKEN, DONE], "Failed"),
        ("Never", [DONE, DONE], "Succeeded"),
    ],
)
def test_phase_of_main_containers(policy: str, states: list[ContainerState], phase: str) -> None:
    names = [f"c{number}" for number in range(len(states))]
    pod = a_pod(*({"name": name} for name in names), restartPolicy=policy)
    assert status_of(pod, dict(zip(names, states, strict=True)), now=NOW)["phase"] == phase


@pytest.mark.parametrize(
    ("policy", "init", "sidecar", "phase", "initialized"),
    [
        ("Always", CREATING, CREATING, "Pending", "False"),
        ("Always", DONE, CREATING, "Pending", "False"),
        ("Always", DONE, RUNNING, "Running", "True"),
        ("Always", CRASHED, CREATING, "Pending", "False"),
        ("Never", BROKEN, CREATING, "Failed", "False"),
        ("Always", DONE, CRASHED, "Running", "True"),
    ],
)
def test_phase_with_init_containers(
    policy: str, init: ContainerState, sidecar: ContainerState, phase: str, initialized: str
) -> None:
    inits = [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}]
    pod = a_pod(initContainers=inits, restartPolicy=policy)
    main = RUNNING if initialized == "True" else CREATING
    status = status_of(pod, {"init": init, "side": sidecar, "main": main}, now=NOW)
    assert (status["phase"], conditions(status)["Initialized"]) == (phase, initialized)


def test_an_unready_sidecar_makes_the_pod_unready() -> None:
    pod = a_pod(initContainers=[{"name": "side", "restartPolicy": "Always"}])
    status = status_of(pod, {"side": UNREADY, "main": RUNNING}, now=NOW)
    assert conditions(status)["Ready"] == "False"
    (ready,) = (condition for condition in status["conditions"] if condition["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [side]"


def test_a_readiness_gate_keeps_the_pod_from_being_ready_but_not_its_containers() -> None:
    pod = a_pod(readinessGates=[{"conditionType": "example.com/open"}])
    status = status_of(pod, {"main": RUNNING}, now=NOW)
    assert (conditions(status)["ContainersReady"], conditions(status)["Ready"]) == ("True", "False")
    pod["status"] = {"conditions": [{"type": "example.com/open", "status": "True"}]}
    assert conditions(status_of(pod, {"main": RUNNING}, now=NOW))["Ready"] == "True"


def test_conditions_keep_their_times_until_they_change() -> None:
    pod = a_pod()
    pod["status"] = status_of(pod, {"main": UNREADY}, now=NOW)
    later = status_of(pod, {"main": RUNNING}, now=NOW + 60)
    before = {condition["type"]: condition["lastTransitionTime"] for condition in pod["status"]["conditions"]}
    after = {condition["type"]: condition["lastTransitionTime"] for condition in later["conditions"]}
    assert {kind for kind in after if after[kind] != before[kind]} == {"Ready", "ContainersReady"}
    assert later["startTime"] == pod["status"]["startTime"]


def test_a_finished_pod_stays_so() -> None:
    pod = a_pod(restartPolicy="Never")
    pod["status"] = {"phase": "Failed"}
    assert status_of(pod, {"main": DONE}, now=NOW)["phase"] == "Failed"


def test_a_stopped_pod_is_over_whatever_its_policy() -> None:
    assert status_of(a_pod(), {"main": DONE}, now=NOW, stopped=True)["phase"] == "Succeeded"
    assert status_of(a_pod(), {"main": BROKEN}, now=NOW, stopped=True)["phase"] == "Failed"


def test_a_failure_of_the_pod_is_told() -> None:
    failure = PodFailure(reason="DeadlineExceeded", message="too long")
    status = status_of(a_pod(), {"main": RUNNING}, now=NOW, failure=failure)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")
    assert conditions(status)["Ready"] == "False"


def test_container_statuses_tell_the_state_and_the_last_end() -> None:
    state = ContainerState(state=Waiting(reason="CrashLoopBackOff", message="soon"), last=ended(3), restarts=4)
    (status,) = status_of(a_pod({"image": "i"}), {"main": state}, now=NOW)["containerStatuses"]
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "soon"}}
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert (status["restartCount"], status["image"], status["ready"]) == (4, "i", False)
