"""What is read from a pod's JSON."""

from __future__ import annotations

from typing import Any

from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.pods.observed import observed_pod

_CREATED, _FINISHED = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
_SINCE = 1767225600.0


def _observed(*, metadata: dict[str, Any] | None = None, node: str | None = "n", **status: Any) -> ObservedPod:
    own = {"uid": "u", "name": "p", "creationTimestamp": _CREATED, "labels": {"rl.trimtab.dev/owner": "pool"}}
    return observed_pod({"metadata": own | (metadata or {}), "spec": {"nodeName": node}, "status": status})


def _ended(code: int, *, field: str = "state", **details: Any) -> dict[str, Any]:
    return {"name": "main", field: {"terminated": {"exitCode": code, "finishedAt": _FINISHED, **details}}}


def test_a_new_pod_is_pending_and_unscheduled() -> None:
    pod = _observed(node=None)
    assert (pod.phase, pod.scheduled, pod.ready, pod.created_at) == (Phase.PENDING, False, False, _SINCE)


def test_a_running_pod_is_ready_when_its_condition_says_so() -> None:
    ready = _observed(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert ready.ready
    assert not _observed(phase="Running", conditions=[{"type": "Ready", "status": "False"}]).ready


def test_a_pod_on_a_lost_node_counts_as_running_and_not_ready() -> None:
    lost = _observed(phase="Unknown", conditions=[{"type": "Ready", "status": "Unknown"}])
    assert (lost.phase, lost.ready) == (Phase.RUNNING, False)


def test_a_failed_pod_says_why_and_since_when() -> None:
    pod = _observed(phase="Failed", containerStatuses=[_ended(3, message="boom")])
    assert (pod.phase, pod.exit_code, pod.message) == (Phase.FAILED, 3, "main exited with 3: boom")
    assert pod.finished_at == _SINCE + 60
    assert not pod.misconfigured


def test_a_container_that_came_back_misconfigured_is_remembered() -> None:
    pod = _observed(phase="Running", containerStatuses=[_ended(78, field="lastState", reason="Error")])
    assert pod.misconfigured
    assert pod.message == "main exited with 78: Error"
    assert pod.finished_at is None


def test_a_pod_that_its_node_rejected_has_the_reason_of_the_pod() -> None:
    pod = _observed(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu")
    assert pod.message == "Node didn't have enough resource: cpu"
    assert pod.finished_at == _SINCE


def test_disruption_and_deletion_are_seen() -> None:
    pod = _observed(
        metadata={"deletionTimestamp": _FINISHED},
        phase="Failed",
        conditions=[{"type": "DisruptionTarget", "status": "True"}],
    )
    assert pod.disrupted
    assert pod.stopping
