"""Kubernetes' own controllers with a pool of the operator: a horizontal autoscaler sizes it, and a disruption budget
protects its pods from eviction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.devcluster.metrics_adapter import METRIC, MetricsAdapter
from tests.support.operator.quickstart_manifest import in_a_cluster
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.cli.main import main
from trimtab.kube.resources import PODS, ROLLOUT_POOLS, Resource

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("node")]

_POOL, _PODS, _WORKER = "learns-local", "learns-local-rollout", "learns-local-rollout-0"
_BUDGETS = Resource(group="policy", version="v1", plural="poddisruptionbudgets", kind="PodDisruptionBudget")
_AUTOSCALERS = Resource(
    group="autoscaling", version="v2", plural="horizontalpodautoscalers", kind="HorizontalPodAutoscaler"
)


def _job(folder: Path) -> dict[str, Any]:
    """It trains, and no autoscaler of ours sizes its pool."""
    job = in_a_cluster(make_quickstart(folder, name="learns", max_steps=1_000_000))
    job["spec"].pop("autoscaling", None)
    return job


def _ready_workers(scene: Scene) -> set[str]:
    return {
        str(pod["metadata"]["uid"])
        for pod in scene.pods(_PODS).values()
        if any(entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"].get("conditions", ()))
    }


def _preempt(scene: Scene, pod: str) -> Result:
    kubeconfig = str(scene.plane.kubeconfig())
    return CliRunner().invoke(main, ["dev", "preempt", pod, "-n", scene.namespace, "--kubeconfig", kubeconfig])


def _allowed(scene: Scene) -> int | None:
    status = scene.must_get(_BUDGETS, "workers").get("status") or {}
    return int(status["disruptionsAllowed"]) if status.get("expectedPods") else None


def test_a_disruption_budget_holds_an_eviction_back_until_it_allows_it(scene: Scene, tmp_path: Path) -> None:
    scene.apply(_job(tmp_path))
    scene.until(lambda: _ready_workers(scene), lambda ready: len(ready) == 1)
    labels = scene.must_get(ROLLOUT_POOLS, _POOL)["status"]["selector"].split(",")
    budget = {"minAvailable": 1, "selector": {"matchLabels": dict(label.split("=") for label in labels)}}
    scene.apply(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "workers"}, "spec": budget}
    )
    scene.until(lambda: _allowed(scene), lambda allowed: allowed == 0)
    refused = _preempt(scene, _WORKER)
    assert (refused.exit_code, "disruption budget" in refused.output) == (1, True), refused.output
    kept = scene.must_get(PODS, _WORKER)
    assert "deletionTimestamp" not in kept["metadata"]
    assert "DisruptionTarget" not in {condition["type"] for condition in kept["status"]["conditions"]}

    scene.kubectl("scale", "rolloutpool", _POOL, "--replicas=2")
    scene.until(lambda: _allowed(scene), lambda allowed: allowed == 1)
    assert _preempt(scene, _WORKER).exit_code == 0
    # The pool replaces what was taken.
    evicted = kept["metadata"]["uid"]
    scene.until(lambda: _ready_workers(scene), lambda ready: len(ready) == 2 and evicted not in ready)


def _autoscaler() -> dict[str, Any]:
    at_once = {"stabilizationWindowSeconds": 0}
    target = {"apiVersion": "rl.trimtab.dev/v1alpha1", "kind": "RolloutPool", "name": _POOL}
    per_pod = {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "10"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "tasks"},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{"type": "External", "external": per_pod}],
            "behavior": {"scaleUp": at_once, "scaleDown": at_once},
        },
    }


def test_a_horizontal_autoscaler_sizes_a_pool_by_an_external_metric(scene: Scene, tmp_path: Path) -> None:
    scene.apply(_job(tmp_path))
    scene.until(lambda: _ready_workers(scene), lambda ready: len(ready) == 1)
    with MetricsAdapter(plane=scene.plane, namespace=scene.namespace, folder=tmp_path, value=30) as adapter:
        scene.apply(_autoscaler())
        scene.until(lambda: _ready_workers(scene), lambda ready: len(ready) == 2)
        assert scene.must_get(ROLLOUT_POOLS, _POOL)["spec"]["replicas"] == 2
        scene.says(_AUTOSCALERS, "tasks", "ScalingActive", "ValidMetricFound")
        scene.says(_AUTOSCALERS, "tasks", "ScalingLimited", "TooManyReplicas")
        adapter.value = 10
        scene.until(lambda: scene.pods(_PODS), lambda pods: len(pods) == 1)
        assert "system:serviceaccount:kube-system:horizontal-pod-autoscaler" in adapter.asked_by
