"""What people with no more than the role `edit` can write: it fails their own object, and costs others nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import ROLLOUT_POOLS
from trimtab.operator.reconcile.placement import ANNOTATION, FINALIZER

_WITHIN_S = 30.0


def _pool(name: str, *, placement: object, **more: Any) -> dict[str, Any]:
    written = placement if isinstance(placement, str) else json.dumps(placement)
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": name, "annotations": {ANNOTATION: written}, **more},
        "spec": {"jobRef": {"name": "tiny"}, "replicas": 1},
    }


def _others_go_on(scene: Scene, name: str) -> None:
    scene.apply(tiny_job(name))
    scene.until(lambda: scene.pods(f"{name}-dataflow"), lambda pods: len(pods) == 1, timeout_s=_WITHIN_S)


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param({"home": ["a"], "secret": ["b"], "key": ["c"], "namespace": ["d"]}, marks=pytest.mark.slow),
        pytest.param("[" * 50_000, marks=pytest.mark.slow),
        {"home": "kube-system", "secret": "admin", "key": "kubeconfig", "namespace": "x"},
    ],
    ids=["lists for texts", "deep", "another namespace"],
)
def test_an_annotation_stops_its_own_pool_and_no_other(scene: Scene, placement: object) -> None:
    scene.apply(tiny_job())
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    scene.apply(_pool("bad", placement=placement, finalizers=[FINALIZER]))
    message = scene.says(ROLLOUT_POOLS, "bad", "Accepted", "Unreadable", timeout_s=_WITHIN_S)
    assert f"metadata.annotations[{ANNOTATION}]" in message
    assert "remove it" in message
    _others_go_on(scene, "other")
    # Without it the pool is as good as any.
    scene.kubectl("annotate", "rolloutpool", "bad", f"{ANNOTATION}-")
    scene.says(ROLLOUT_POOLS, "bad", "Accepted", "Accepted", timeout_s=_WITHIN_S)
    # And it can go, whatever the annotation was.
    scene.kubectl("annotate", "rolloutpool", "bad", f"{ANNOTATION}=[]")
    scene.kubectl("delete", "rolloutpool", "bad", "--timeout=60s")


def test_another_namespaces_secret_is_not_read(scene: Scene) -> None:
    """The operator would say whether it is there, and dial with what is in it."""
    elsewhere = f"{scene.namespace}-other"
    scene.plane.kubectl("create", "namespace", elsewhere)
    scene.plane.kubectl("-n", elsewhere, "create", "secret", "generic", "far", "--from-literal=kubeconfig=hidden")
    placement = {"home": elsewhere, "secret": "far", "key": "kubeconfig", "namespace": "x"}
    scene.apply(tiny_job(), _pool("spy", placement=placement))
    scene.says(ROLLOUT_POOLS, "spy", "Accepted", "Unreadable", timeout_s=_WITHIN_S)
    assert scene.condition(ROLLOUT_POOLS, "spy", "Reachable") == {}
    assert "link" not in scene.operator.log.partition(elsewhere)[2].splitlines()[:1]
    assert f'"home": "{elsewhere}"' not in scene.operator.log


def test_an_object_nested_beyond_all_measure_stops_no_list_and_no_watch(scene: Scene) -> None:
    """Free-form fields take any depth that the API server takes; a JSON reader that recurses does not."""
    text = json.dumps(tiny_job("deep"))
    nested = "[" * 3000 + "]" * 3000
    entrypoint = '"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"'
    assert entrypoint in text
    scene.kubectl("create", "-f", "-", stdin=text.replace(entrypoint, f'{entrypoint}, "args": {{"a": {nested}}}'))
    # Python's own reader is one that recurses, so kubectl picks out what is read here.
    told = ("get", "rljob", "deep", "-o", "jsonpath={.status.conditions[?(@.type=='Accepted')]}")
    scene.until(
        lambda: scene.kubectl(*told),
        lambda said: "Unreadable" in said and "nested deeper than 100 levels" in said,
        timeout_s=_WITHIN_S,
    )
    _others_go_on(scene, "other")
    scene.kubectl("delete", "rljob", "deep", "--timeout=60s")


def test_pods_that_pretend_are_told_apart_from_ours(scene: Scene) -> None:
    """Labels and owners are whatever their author writes."""
    scene.apply(tiny_job())
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    pool = scene.must_get(ROLLOUT_POOLS, "tiny-home")
    owner = {"apiVersion": "rl.trimtab.dev/v1alpha1", "kind": "RolloutPool", "name": "tiny-home", "controller": True}
    scene.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "pretender",
                "labels": {"rl.trimtab.dev/job": "tiny", "rl.trimtab.dev/attempt": "9" * 60},
                "ownerReferences": [{**owner, "uid": pool["metadata"]["uid"]}],
            },
            "spec": {"containers": [{"name": "a", "image": "a"}]},
        }
    )
    _others_go_on(scene, "other")
    # Its own pool goes on, too.
    scene.kubectl("scale", "rolloutpool/tiny-home", "--replicas=2")
    wanted = scene.must_get(ROLLOUT_POOLS, "tiny-home")["metadata"]["generation"]
    scene.until(
        lambda: scene.must_get(ROLLOUT_POOLS, "tiny-home")["status"]["observedGeneration"],
        lambda seen: seen >= wanted,
    )
