"""Why a pod does not start or go on, from the words of scheduler, kubelet and node controller."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.plan.troubles import one_line, told
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.pods.troubles import trouble_of

CREATED, SINCE, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"
EPOCH = 1767225600.0
OOM = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": LATER}


def _pod(*, name: str = "p", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "creationTimestamp": CREATED, "labels": {}}
    return {"metadata": metadata, "spec": {"nodeName": "n1"} if spec is None else spec, "status": status}


def _condition(kind: str, status: str, **fields: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": SINCE, **fields}


def _unschedulable(message: str) -> dict[str, Any]:
    condition = _condition("PodScheduled", "False", reason="Unschedulable", message=message)
    return _pod(spec={}, phase="Pending", conditions=[condition])


def _waiting(reason: str, message: str = "", *, field: str = "containerStatuses", **entry: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    listed: Any = [{"name": "engine", "image": "registry/none:1", "state": state, "restartCount": 4, **entry}]
    pod = _pod(phase="Pending", startTime=SINCE)
    pod["status"][field] = listed
    return pod


def _ready(status: str, *, containers: str, spec: dict[str, Any] | None = None, **fields: str) -> dict[str, Any]:
    conditions = [_condition("ContainersReady", containers), _condition("Ready", status, **fields)]
    return _pod(spec={"nodeName": "n1", **(spec or {})}, phase="Running", conditions=conditions)


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        pytest.param(
            _unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are."),
            "Unschedulable", ["no node fits", "3 Insufficient nvidia.com/gpu", "lower resources.requests"], id="full",
        ),
        pytest.param(
            _unschedulable("0/1 nodes are available: 1 node(s) had untolerated taint {gpu: true}."),
            "Unschedulable", ["taint {gpu: true}", "tolerate the taint"], id="taint",
        ),
        pytest.param(
            _unschedulable("0/1 nodes are available: 1 node(s) were unschedulable."),
            "Unschedulable", ["cordoned", "uncordon"], id="cordoned",
        ),
        pytest.param(
            _unschedulable("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
            "Unschedulable", ["nodeSelector"], id="selector",
        ),
        pytest.param(
            _pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, phase="Pending"),
            "SchedulingGated", ["kueue.x-k8s.io/admission"], id="somebody else's gate",
        ),
        pytest.param(
            _waiting("ErrImagePull", "rpc error: not found"),
            "ImagePullBackOff", ["registry/none:1", "not found", "imagePullSecrets"], id="image",
        ),
        pytest.param(
            _waiting("ImagePullBackOff", 'Back-off pulling image "x"', field="initContainerStatuses"),
            "ImagePullBackOff", ["engine cannot pull", "name and tag"], id="image of a sidecar",
        ),
        pytest.param(
            _waiting("CreateContainerConfigError", 'secret "s" not found'),
            "CreateContainerConfigError", ['secret "s" not found', "correct the reference"], id="missing secret",
        ),
        pytest.param(
            _waiting(
                "CrashLoopBackOff", "back-off 40s restarting failed container", field="initContainerStatuses",
                lastState={"terminated": {"exitCode": 1, "message": "no such model", "finishedAt": LATER}},
            ),
            "CrashLoopBackOff", ["engine exited with 1", "4 times", "no such model", "kubectl logs p -c engine"],
            id="an engine that crashes",
        ),
        pytest.param(
            _waiting("CrashLoopBackOff", lastState={"terminated": OOM | {"message": "loading"}}),
            "OOMKilled", ["OOMKilled", "raise resources.limits.memory", "loading"], id="an engine without memory",
        ),
        pytest.param(_waiting("RunContainerError", "no python"), "ContainerNotStarted", ["no python"], id="no command"),
        pytest.param(
            _ready("False", containers="True"), "NodeNotReady", ["node n1 is not ready", "may well go on"], id="node"
        ),
    ],
)  # fmt: skip
def test_troubles(pod: dict[str, Any], reason: str, words: list[str]) -> None:
    trouble = trouble_of(pod)
    assert trouble is not None
    assert trouble.reason == reason
    assert [word for word in words if word not in trouble.message] == []


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(_pod(spec={}, phase="Pending"), id="new"),
        pytest.param(_pod(spec={"schedulingGates": [{"name": "rl.trimtab.dev/gang"}]}, phase="Pending"), id="our gate"),
        pytest.param(
            _pod(
                spec={},
                phase="Pending",
                conditions=[_condition("PodScheduled", "False", reason="SchedulingGated", message="blocked")],
            ),
            id="let go a moment ago",
        ),
        pytest.param(_waiting("ContainerCreating"), id="being made"),
        pytest.param(_waiting("PodInitializing"), id="after its init containers"),
        pytest.param(_ready("True", containers="True"), id="ready"),
        pytest.param(_ready("False", containers="False"), id="not ready yet"),
        pytest.param(_ready("False", containers="True", spec={"readinessGates": [{}]}), id="readiness gate"),
        pytest.param(_pod(phase="Failed", containerStatuses=[{"name": "a", "state": {"terminated": OOM}}]), id="over"),
    ],
)
def test_no_trouble(pod: dict[str, Any]) -> None:
    assert trouble_of(pod) is None


def test_the_two_names_of_a_failed_pull_read_the_same() -> None:
    failed = _waiting("ErrImagePull", "rpc error: code = NotFound: not found")
    backing_off = _waiting(
        "ImagePullBackOff",
        'Back-off pulling image "registry/none:1": ErrImagePull: rpc error: code = NotFound: not found',
    )
    assert trouble_of(failed) == trouble_of(backing_off)


def test_times_are_the_cluster_s_own() -> None:
    assert _since(_unschedulable("full")) == EPOCH + 60
    assert _since(_waiting("ErrImagePull")) == EPOCH + 60
    assert (
        _since(_waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 1, "finishedAt": LATER}}))
        == EPOCH + 120
    )


def _since(pod: dict[str, Any]) -> float:
    trouble = trouble_of(pod)
    assert trouble is not None
    return trouble.since


def test_words_of_others_are_one_short_line() -> None:
    trouble = trouble_of(_unschedulable("a\nb\x1b[31m\u2028c" + "x" * 100_000))
    assert trouble is not None
    assert trouble.message.isprintable()
    assert len(trouble.message) < 1000
    assert one_line("a \n\t b") == "a b"


def test_one_of_many_is_told_and_the_rest_counted() -> None:
    pods = [_observed(_unschedulable("1 Insufficient cpu"), name=f"p-{number}") for number in range(3)]
    assert told(pods).startswith("p-0: no node fits")
    assert told(pods).endswith("(2 more pods wait)")
    assert told([]) == ""


def _observed(pod: dict[str, Any], *, name: str = "p") -> ObservedPod:
    return observed_pod(pod | {"metadata": pod["metadata"] | {"name": name}})


def test_out_of_memory_is_told_before_the_log() -> None:
    end = {"name": "main", "state": {"terminated": OOM | {"message": "step 1\nstep 2"}}}
    pod = _observed(_pod(phase="Failed", containerStatuses=[end]))
    assert pod.killed_by == "OOMKilled"
    assert pod.message.startswith("main was OOMKilled (exit code 137)")
    assert "raise resources.limits.memory" in pod.message
    assert pod.message.endswith("it said: step 1 step 2")


def test_a_sidecar_that_died_and_came_back_is_remembered_with_its_time() -> None:
    engine = {"name": "engine", "state": {"running": {}}, "lastState": {"terminated": OOM}}
    pod = _observed(_pod(phase="Running", initContainerStatuses=[engine]))
    assert (pod.killed_by, pod.failed_container, pod.crashed_at) == ("OOMKilled", "engine", EPOCH + 120)
    assert pod.trouble is None


def test_an_eviction_is_told_before_what_it_did_to_the_container() -> None:
    end = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": LATER}}}
    pod = _observed(
        _pod(phase="Failed", reason="Evicted", message="The node was low on memory.", containerStatuses=[end])
    )
    assert pod.killed_by == "Evicted"
    assert pod.message == "The node was low on memory.; main exited with 137: Error"
