"""What the operator makes of an RLJob on a real API server without a node: children, wiring, scale, suspension."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import CONFIG_MAPS, PODS, RLJOBS, ROLLOUT_POOLS, SECRETS, TRAINERS

DATAFLOW, TRAINER, WORKER = "tiny-dataflow-0", "tiny-solver-trainer-0", "tiny-home-rollout-0"


def test_a_job_becomes_pods_that_are_wired_to_it(scene: Scene) -> None:
    scene.apply(tiny_job())
    pods = scene.has_pods(DATAFLOW, TRAINER, WORKER)
    job = scene.must_get(RLJOBS, "tiny")
    owners = {
        DATAFLOW: job,
        TRAINER: scene.must_get(TRAINERS, "tiny-solver"),
        WORKER: scene.must_get(ROLLOUT_POOLS, "tiny-home"),
    }
    for name, pod in pods.items():
        (reference,) = pod["metadata"]["ownerReferences"]
        assert reference["uid"] == owners[name]["metadata"]["uid"]
        assert reference["controller"]
    for name in (TRAINER, WORKER):
        assert owners[name]["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert pods[TRAINER]["spec"]["restartPolicy"] == "Never"
    assert [entry["name"] for entry in pods[WORKER]["spec"]["initContainers"]] == ["engine-solver"]

    mounted = {pod["spec"]["volumes"][0]["projected"]["sources"][0]["configMap"]["name"] for pod in pods.values()}
    assert mounted == {entry["metadata"]["name"] for entry in scene.listed(CONFIG_MAPS)} - {"kube-root-ca.crt"}
    secret = scene.must_get(SECRETS, "tiny-credentials")
    shown = {name: {item["key"] for item in pod["spec"]["volumes"][1]["secret"]["items"]} for name, pod in pods.items()}
    for name, role in ((DATAFLOW, "dataflow"), (TRAINER, "trainer"), (WORKER, "rollout")):
        assert {key for key in shown[name] if key.startswith("nats")} == {f"nats-credentials-{role}"}
    assert "weights__signing_seed" in shown[TRAINER]
    assert "weights__signing_seed" not in shown[WORKER] | shown[DATAFLOW]
    # No secret in plain sight.
    everything = json.dumps([pods, scene.listed(CONFIG_MAPS), job])
    for value in secret["data"].values():
        assert value not in everything
        assert base64.b64decode(value).decode() not in everything


def test_pods_of_a_job_live_where_only_restricted_ones_may_and_have_no_token(scene: Scene) -> None:
    scene.kubectl("label", "namespace", scene.namespace, "pod-security.kubernetes.io/enforce=restricted")
    scene.apply(tiny_job())
    for name, pod in scene.has_pods(DATAFLOW, TRAINER, WORKER).items():
        assert pod["spec"]["automountServiceAccountToken"] is False, name
        assert "serviceAccountToken" not in json.dumps(pod["spec"]["volumes"]), name


def test_scaling_by_kubectl_adds_and_removes_pods_and_stays(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    scene.kubectl("scale", "rolloutpool/tiny-home", "--replicas=3")
    more = [f"tiny-home-rollout-{number}" for number in range(3)]
    scene.has_pods(DATAFLOW, TRAINER, *more)
    scene.make_ready("tiny-home-rollout-2")
    scene.until(
        lambda: (scene.get(ROLLOUT_POOLS, "tiny-home") or {}).get("status", {}),
        lambda status: status.get("readyReplicas") == 1,
    )
    scene.kubectl("scale", "rolloutpool/tiny-home", "--replicas=1")
    # The one that works is the last to go.
    scene.has_pods(DATAFLOW, TRAINER, "tiny-home-rollout-2")
    # The manifest's own number has not changed, so applying it again overrules nobody.
    scene.apply(tiny_job(maxSteps=11))
    scene.until(
        lambda: (scene.get(RLJOBS, "tiny") or {}).get("status", {}),
        lambda status: status.get("observedGeneration") == 2,
    )
    assert scene.must_get(ROLLOUT_POOLS, "tiny-home")["spec"]["replicas"] == 1
    scale = json.loads(scene.kubectl("get", "rolloutpool/tiny-home", "--subresource=scale", "-o", "json"))
    listed = scene.kubectl("get", "pods", "-l", scale["status"]["selector"], "-o", "name")
    assert listed.split() == ["pod/tiny-home-rollout-2"]


def test_suspend_removes_all_pods_and_resume_brings_them_back(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    scene.apply(tiny_job(suspend=True))
    scene.has_pods()
    scene.until(
        lambda: scene.condition(RLJOBS, "tiny", "Suspended"), lambda condition: condition.get("status") == "True"
    )
    scene.apply(tiny_job(suspend=False))
    pods = scene.has_pods(DATAFLOW, TRAINER, WORKER)
    assert pods[TRAINER]["metadata"]["labels"]["rl.trimtab.dev/attempt"] == "2"
    scene.until(lambda: scene.reasons("tiny"), lambda reasons: {"Suspended", "Resumed"} <= reasons)


def test_a_changed_template_rolls_within_bounds(scene: Scene) -> None:
    pool = {"name": "home", "replicas": 3, "gracePeriodSeconds": 5, "update": {"maxUnavailable": 1, "maxSurge": 0}}
    scene.apply(tiny_job(pools=[pool]))
    names = [f"tiny-home-rollout-{number}" for number in range(3)]
    before = scene.has_pods(DATAFLOW, TRAINER, *names)
    scene.make_ready(*names)
    scene.until(
        lambda: (scene.get(ROLLOUT_POOLS, "tiny-home") or {}).get("status", {}),
        lambda status: status.get("readyReplicas") == 3,
    )
    template = {"spec": {"containers": [{"name": "worker", "env": [{"name": "COLOUR", "value": "blue"}]}]}}
    scene.apply(tiny_job(pools=[pool | {"template": template}]))
    old = {before[name]["metadata"]["uid"] for name in names}
    for left in (2, 1, 0):
        # One goes; the next waits until its successor is ready.
        pods = scene.until(
            lambda: scene.pods("rollout"),
            lambda pods: len(pods) == 3 and _count(pods, old) == left,  # noqa: B023 - called in this turn of the loop
        )
        fresh = [
            name
            for name, pod in pods.items()
            if pod["metadata"]["uid"] not in old and pod["status"].get("phase") == "Pending"
        ]
        assert len(fresh) == 1
        scene.make_ready(*fresh)
    # A successor has another name where its predecessor was still on its way out.
    for pod in scene.pods("rollout").values():
        assert {"name": "COLOUR", "value": "blue"} in pod["spec"]["containers"][0]["env"]
    # The manifest that only the old pods had is gone with them.
    scene.until(
        lambda: [entry["metadata"]["name"] for entry in scene.listed(CONFIG_MAPS)],
        lambda found: sum("home-rollout" in name for name in found) == 1,
    )


def _count(pods: dict[str, dict[str, Any]], uids: set[str]) -> int:
    return sum(pod["metadata"]["uid"] in uids for pod in pods.values())


def test_a_taken_name_is_said_and_never_touched(scene: Scene) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": WORKER},
        "spec": {"containers": [{"name": "main", "image": "theirs"}]},
    }
    scene.apply(foreign)
    scene.apply(tiny_job())
    message = scene.says(ROLLOUT_POOLS, "tiny-home", "Accepted", "NameTaken")
    assert WORKER in message
    assert scene.must_get(PODS, WORKER)["spec"]["containers"][0]["image"] == "theirs"
    scene.until(lambda: scene.reasons("tiny-home"), lambda reasons: "NameTaken" in reasons)
    scene.kubectl("delete", "pod", WORKER)
    scene.until(lambda: scene.pods("rollout"), lambda pods: WORKER in pods and pods[WORKER]["metadata"].get("labels"))
    scene.says(ROLLOUT_POOLS, "tiny-home", "Accepted", "Accepted")


def test_what_cannot_run_in_a_cluster_is_refused_by_name(scene: Scene) -> None:
    scene.apply(tiny_job(policies=[{"name": "solver", "model": {"uri": "model"}}]))
    message = scene.says(RLJOBS, "tiny", "Accepted", "NotSupported")
    assert "spec.policies[0].model.uri" in message
    assert scene.pods() == {}
    # Nothing was made, so nothing holds it.
    assert "finalizers" not in scene.must_get(RLJOBS, "tiny")["metadata"]


def test_a_template_that_the_server_refuses_is_said(scene: Scene) -> None:
    broken = {"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Sometimes"}]}}
    scene.apply(tiny_job(pools=[{"name": "home", "template": broken}]))
    message = scene.says(ROLLOUT_POOLS, "tiny-home", "Accepted", "PodRefused")
    assert "imagePullPolicy" in message
    scene.apply(tiny_job(pools=[{"name": "home"}]))
    scene.says(ROLLOUT_POOLS, "tiny-home", "Accepted", "Accepted")


def test_jobs_of_others_are_left_alone(scene: Scene) -> None:
    scene.apply(tiny_job(managedBy="kueue.x-k8s.io/multikueue"), tiny_job("ours"))
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    assert all(name.startswith("ours-") for name in scene.pods())
    assert "status" not in scene.must_get(RLJOBS, "tiny")


def test_a_deleted_job_drains_and_lets_go(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    assert scene.must_get(RLJOBS, "tiny")["metadata"]["finalizers"] == ["rl.trimtab.dev/cleanup"]
    scene.kubectl("delete", "rljob", "tiny", "--wait=false")
    scene.has_pods()
    scene.job_gone("tiny")
