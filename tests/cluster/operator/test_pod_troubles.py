"""Why pods do not start or go on, told by `kubectl describe rljob`, with the fix."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import RLJOBS, TRAINERS

DATAFLOW, TRAINER, WORKER = "tiny-dataflow-0", "tiny-solver-trainer-0", "tiny-home-rollout-0"
THEN = "2026-01-01T00:00:00Z"
TAINTED = "0/3 nodes are available: 3 node(s) had untolerated taint {gpu: reserved}."
OOM = {"exitCode": 137, "reason": "OOMKilled", "message": "loading weights", "startedAt": THEN, "finishedAt": THEN}


def _condition(kind: str, status: str, **fields: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": THEN, **fields}


def _container(name: str, *, waiting: dict[str, str], last: dict[str, Any] | None = None) -> dict[str, Any]:
    state = {"state": {"waiting": waiting}, "lastState": {"terminated": last} if last else {}}
    return {"name": name, "image": "trimtab:test", "imageID": "", "ready": False, "restartCount": 3, **state}


UNSCHEDULABLE = {"conditions": [_condition("PodScheduled", "False", reason="Unschedulable", message=TAINTED)]}
NO_IMAGE = {"reason": "ErrImagePull", "message": "rpc error: trimtab:test: not found"}
CRASHES = {"reason": "CrashLoopBackOff", "message": "back-off 40s"}


@pytest.mark.parametrize(
    ("pod", "status", "reason", "words"),
    [
        pytest.param(TRAINER, UNSCHEDULABLE, "Unschedulable", ("taint {gpu: reserved}", "tolerate"), id="taint"),
        pytest.param(DATAFLOW, UNSCHEDULABLE, "Unschedulable", ("taint {gpu: reserved}", "tolerate"), id="dataflow"),
        pytest.param(
            WORKER, {"containerStatuses": [_container("worker", waiting=NO_IMAGE)]},
            "ImagePullBackOff", ("not found", "imagePullSecrets"), id="image",
        ),
        pytest.param(
            WORKER, {"initContainerStatuses": [_container("engine-solver", waiting=CRASHES, last=OOM)]},
            "OOMKilled", ("engine-solver was OOMKilled", "raise resources.limits.memory"), id="an engine out of memory",
        ),
    ],
)  # fmt: skip
def test_what_the_cluster_says_is_told_with_the_fix(
    scene: Scene, pod: str, status: dict[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    scene.patch_pod_status(pod, status)
    described = scene.until(
        lambda: scene.kubectl("describe", "rljob", "tiny"),
        lambda text: all(word in " ".join(text.split()) for word in words),
    )
    assert reason in described
    version = scene.must_get(RLJOBS, "tiny")["metadata"]["resourceVersion"]
    scene.kubectl("annotate", "pod", pod, "poke=1")
    scene.until(lambda: scene.condition(TRAINERS, "tiny-solver", "Ready"), bool)
    assert scene.must_get(RLJOBS, "tiny")["metadata"]["resourceVersion"] == version, "it flaps"


def test_a_trouble_that_is_over_is_no_longer_told(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    scene.patch_pod_status(TRAINER, UNSCHEDULABLE)
    scene.until(lambda: _told(scene), lambda error: error.get("reason") == "Unschedulable")
    scene.patch_pod_status(TRAINER, {"conditions": [_condition("PodScheduled", "True", reason="", message="")]})
    scene.until(lambda: _told(scene), lambda error: error == {})
    assert "PodWaits" in scene.reasons("tiny")


def test_ranks_behind_a_node_that_is_away_are_not_said_to_be_idle(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    scene.kubectl("create", "-f", "-", stdin=_binding(TRAINER))
    scene.patch_pod_status(
        TRAINER,
        {"phase": "Running", "conditions": [_condition("ContainersReady", "True"), _condition("Ready", "True")]},
    )
    scene.says(TRAINERS, "tiny-solver", "Ready", "RanksReady")
    scene.patch_pod_status(TRAINER, {"conditions": [_condition("Ready", "False")]})
    assert "node away is not ready" in scene.says(TRAINERS, "tiny-solver", "Ready", "NodeNotReady")


def _told(scene: Scene) -> dict[str, Any]:
    return dict((scene.must_get(RLJOBS, "tiny").get("status") or {}).get("lastError") or {})


def _binding(pod: str) -> str:
    return (
        f'{{"apiVersion": "v1", "kind": "Binding", "metadata": {{"name": "{pod}"}}, '
        '"target": {"apiVersion": "v1", "kind": "Node", "name": "away"}}'
    )
