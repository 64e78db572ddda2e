"""Pools and trainers that a person makes, and what other controllers see of a pool."""

from __future__ import annotations

import json
from typing import Any

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import PODS, ROLLOUT_POOLS, TRAINERS


def _made_by_hand(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"jobRef": {"name": "tiny"}, **spec},
    }


def test_a_pool_made_by_hand_works_for_the_job_and_goes_alone(scene: Scene) -> None:
    scene.apply(tiny_job(), _made_by_hand("RolloutPool", "lent", replicas=2))
    scene.until(lambda: scene.pods("lent-rollout"), lambda pods: len(pods) == 2)
    of_the_job = scene.until(lambda: scene.pods("tiny-home-rollout"), bool)
    scene.kubectl("delete", "rolloutpool", "lent", "--wait=true", "--timeout=300s")
    assert scene.pods("tiny-home-rollout").keys() == of_the_job.keys()


def test_what_is_made_by_hand_is_refused_by_the_field_that_cannot_work(scene: Scene) -> None:
    scene.apply(
        tiny_job(),
        _made_by_hand("Trainer", "own", policy="solver", model={"uri": "relative/model"}),
        _made_by_hand("RolloutPool", "odd", engine={"name": "sglang", "interpreter": "bin/python"}),
    )
    assert "spec.model.uri (relative/model)" in scene.says(TRAINERS, "own", "Accepted", "NotSupported")
    assert "spec.engine.interpreter" in scene.says(ROLLOUT_POOLS, "odd", "Accepted", "NotSupported")
    assert scene.pods("own-") == scene.pods("odd-") == {}


def test_the_scale_subresource_says_what_an_autoscaler_asks_for(scene: Scene) -> None:
    """HPA reads the sizes and the selector there, counts the pods of the selector, and writes the size back."""
    scene.apply(tiny_job(replicas=2))
    scene.until(lambda: scene.pods("tiny-home-rollout"), lambda pods: len(pods) == 2)
    path = f"{ROLLOUT_POOLS.path(namespace=scene.namespace, name='tiny-home')}/scale"

    def scale() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(scene.kubectl("get", "--raw", path))
        return found

    seen = scene.until(scale, lambda seen: seen["status"].get("replicas") == 2)
    assert seen["spec"]["replicas"] == 2
    selected = json.loads(scene.kubectl("get", PODS.plural, "-l", seen["status"]["selector"], "-o", "json"))["items"]
    assert {pod["metadata"]["name"] for pod in selected} == set(scene.pods("tiny-home-rollout"))
    seen["spec"]["replicas"] = 3
    scene.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(seen))
    scene.until(lambda: scene.pods("tiny-home-rollout"), lambda pods: len(pods) == 3)
    scene.kubectl("autoscale", "rolloutpool", "tiny-home", "--min=1", "--max=5", "--cpu=80%")
