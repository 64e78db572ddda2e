"""A pool in another cluster, under exactly the Role that is shipped for it: made, scaled, moved and deleted."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.support.operator.scene import Scene, tiny_job
from tests.support.remote.far_side import FarSide, kubeconfig_secret
from trimtab.kube.resources import CONFIG_MAPS, ROLLOUT_POOLS, SECRETS

HOME = {"name": "home", "replicas": 1, "gracePeriodSeconds": 5}
AT_HOME = ("tiny-dataflow-0", "tiny-solver-trainer-0", "tiny-home-rollout-0")


def test_a_pool_is_made_scaled_and_deleted_there(scene: Scene, far: FarSide) -> None:
    scene.apply(kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, far.pool(replicas=2)]))
    scene.has_pods(*AT_HOME)
    far.has_pods("tiny-far-rollout-0", "tiny-far-rollout-1")
    pool = scene.must_get(ROLLOUT_POOLS, "tiny-far")
    assert pool["metadata"]["finalizers"] == ["rl.trimtab.dev/remote"]
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")

    # What is there counts at home.
    far.scene.make_ready(*far.scene.pods())
    status = scene.until(
        lambda: scene.must_get(ROLLOUT_POOLS, "tiny-far").get("status", {}),
        lambda status: status.get("readyReplicas") == 2,
    )
    assert status["replicas"] == 2

    scene.kubectl("scale", "rolloutpool/tiny-far", "--replicas=3")
    far.has_pods(*(f"tiny-far-rollout-{number}" for number in range(3)))
    scene.kubectl("scale", "rolloutpool/tiny-far", "--replicas=1")
    scene.until(far.pods, lambda pods: len(pods) == 1)
    scene.has_pods(*AT_HOME)

    scene.kubectl("delete", "rljob", "tiny", "--wait=false")
    scene.job_gone("tiny")
    scene.until(lambda: scene.listed(ROLLOUT_POOLS), lambda pools: pools == [])
    far.is_empty()
    scene.until(scene.pods, lambda pods: pods == {})


@pytest.mark.slow
def test_what_keeps_a_pod_there_from_starting_is_told_at_home(scene: Scene, far: FarSide) -> None:
    scene.apply(kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, far.pool()]))
    far.has_pods("tiny-far-rollout-0")
    (name,) = far.scene.pods()
    full = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    far.scene.patch_pod_status(name, {"conditions": [full]})
    error = scene.until(
        lambda: (scene.must_get(ROLLOUT_POOLS, "tiny-far").get("status") or {}).get("lastError") or {},
        lambda error: error.get("reason") == "Unschedulable",
        timeout_s=10.0,
    )
    assert (error["pod"], error["cluster"]) == ("tiny-far-rollout-0", far.pool()["cluster"]["kubeconfigSecret"]["name"])
    scene.until(
        lambda: " ".join(scene.kubectl("describe", "rljob", "tiny").split()),
        lambda described: "4 Insufficient nvidia.com/gpu" in described,
        timeout_s=10.0,
    )


@pytest.mark.slow
def test_what_is_sent_there_is_what_pods_need_and_no_more(
    scene: Scene, far: FarSide, remote_credentials: dict[str, str]
) -> None:
    scene.apply(kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, far.pool()]))
    (pod,) = far.has_pods("tiny-far-rollout-0").values()
    (secret,) = far.scene.listed(SECRETS)
    assert [key for key in secret["data"] if key.startswith("nats")] == ["nats-credentials-rollout"]
    assert not [key for key in secret["data"] if "seed" in key]
    worker = next(entry for entry in pod["spec"]["containers"] if entry["name"] == "worker")
    environment = {entry["name"]: entry.get("value") for entry in worker["env"]}
    assert environment["TRIMTAB_NATS__SERVERS"] == remote_credentials["TRIMTAB_REMOTE_NATS__SERVERS"]
    assert environment["TRIMTAB_NATS__INBOX_PREFIX"] not in (None, "_INBOX")
    (shown,) = [volume["secret"]["items"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    assert {"key": "nats-credentials-rollout", "path": "nats-credentials"} in shown
    # On the bus it is the member of the pool at home, and its job's.
    assert environment["TRIMTAB_POD__NAME"] == "tiny-far-rollout-0"
    assert environment["TRIMTAB_POD__NAMESPACE"] == scene.namespace
    at_home = scene.until(lambda: scene.get(SECRETS, "tiny-credentials"), lambda found: found is not None)
    assert at_home is not None
    assert environment["TRIMTAB_WEIGHTS__PUBLIC_KEYS"]
    everything = json.dumps([far.scene.listed(resource) for resource in (SECRETS, CONFIG_MAPS)]) + json.dumps(pod)
    for role in ("dataflow", "trainer"):
        assert at_home["data"][f"nats-credentials-{role}"] not in everything
    assert at_home["data"]["weights__signing_seed"] not in everything
    owners = {
        reference["uid"]
        for item in (pod, secret, *far.scene.listed(CONFIG_MAPS))
        for reference in item["metadata"].get("ownerReferences") or ()
    }
    (anchor,) = [
        item["metadata"]["uid"]
        for item in far.scene.listed(CONFIG_MAPS)
        if item["metadata"].get("labels", {}).get("rl.trimtab.dev/role") == "anchor"
    ]
    assert owners == {anchor}


@pytest.mark.slow
def test_two_namespaces_send_pools_of_one_name_to_one_place(scene: Scene, far: FarSide) -> None:
    other = f"test-{uuid.uuid4().hex[:12]}"
    scene.plane.kubectl("create", "namespace", other)
    secret, job = kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, far.pool()])
    scene.apply(secret, job)
    listed = {"apiVersion": "v1", "kind": "List", "items": [secret, job]}
    scene.plane.kubectl("-n", other, "apply", "-f", "-", stdin=json.dumps(listed))
    scene.until(far.scene.pods, lambda pods: len(pods) == 2)
    scene.plane.kubectl("-n", other, "delete", "rljob", "tiny", "--timeout=300s")
    (left,) = scene.until(far.scene.pods, lambda pods: len(pods) == 1).values()
    assert left["metadata"]["labels"]["rl.trimtab.dev/home-namespace"] == scene.namespace
    # What is not ours is never touched, whatever its name.
    assert scene.condition(ROLLOUT_POOLS, "tiny-far", "Accepted")["status"] == "True"


@pytest.mark.slow
def test_a_pool_that_is_moved_home_leaves_nothing_there(scene: Scene, far: FarSide) -> None:
    scene.apply(kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, far.pool()]))
    far.has_pods("tiny-far-rollout-0")
    scene.apply(tiny_job(pools=[HOME, {"name": "far", "replicas": 1, "gracePeriodSeconds": 5, "cluster": None}]))
    scene.has_pods(*AT_HOME, "tiny-far-rollout-0")
    far.is_empty()
    scene.until(lambda: scene.must_get(ROLLOUT_POOLS, "tiny-far")["metadata"], lambda own: "finalizers" not in own)
    scene.until(lambda: scene.condition(ROLLOUT_POOLS, "tiny-far", "Reachable"), lambda condition: condition == {})


@pytest.mark.slow
@pytest.mark.parametrize("field", ["namespace", "account"])
def test_what_the_account_may_not_do_is_said_with_the_fix(scene: Scene, far: FarSide, field: str) -> None:
    pool = far.pool()
    if field == "namespace":
        pool["cluster"]["namespace"] = "default"
    else:
        far.plane.kubectl("-n", far.namespace, "delete", "rolebinding", "trimtab-remote")
    scene.apply(kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, pool]))
    message = scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Forbidden")
    assert "remote.yaml" in message
    if field == "account":
        far.plane.kubectl("-n", far.namespace, "apply", "-f", str(far.role))
        scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")
        far.has_pods("tiny-far-rollout-0")
