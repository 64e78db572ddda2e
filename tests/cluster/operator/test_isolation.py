"""NetworkPolicies of jobs on a real API server: there before the first pod, one for each job, and kept as they are. So
is the job's Secret.
"""

from __future__ import annotations

import json

import pytest

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import NETWORK_POLICIES, PODS, SECRETS


def test_each_job_has_policies_of_its_own_before_its_pods(scene: Scene) -> None:
    policies = [{"name": "solver", "model": {"uri": "/models/tiny"}, "trainer": {"replicas": 2}}]
    scene.apply(tiny_job("one", policies=policies), tiny_job("two"))
    scene.until(scene.pods, lambda pods: len(pods) == 7)
    found = {policy["metadata"]["name"]: policy for policy in scene.listed(NETWORK_POLICIES)}
    assert set(found) == {"one-pods", "two-pods", "one-solver-ranks", "two-solver-ranks"}
    selected = found["one-pods"]["spec"]["podSelector"]["matchLabels"]
    for pod in scene.listed(PODS):
        own = pod["metadata"]["labels"]
        assert (selected.items() <= own.items()) == (own["rl.trimtab.dev/job"] == "one")
    pods = scene.listed(PODS)
    first = min(pod["metadata"]["creationTimestamp"] for pod in pods)
    assert found["one-pods"]["metadata"]["creationTimestamp"] <= first
    ranks = found["one-solver-ranks"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    reached = {pod["metadata"]["name"] for pod in pods if ranks.items() <= pod["metadata"]["labels"].items()}
    assert reached == {"one-solver-trainer-0", "one-solver-trainer-1"}
    (owner,) = found["one-pods"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("RLJob", "one")


@pytest.mark.slow
def test_a_policy_that_was_changed_or_deleted_is_put_right(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    wanted = scene.must_get(NETWORK_POLICIES, "tiny-pods")["spec"]
    scene.kubectl("patch", "networkpolicy", "tiny-pods", "--type=merge", "-p", json.dumps({"spec": {"egress": [{}]}}))
    scene.until(lambda: scene.must_get(NETWORK_POLICIES, "tiny-pods"), lambda policy: policy["spec"] == wanted)
    scene.kubectl("delete", "networkpolicy", "tiny-pods")
    scene.until(lambda: scene.get(NETWORK_POLICIES, "tiny-pods"), lambda policy: policy is not None)


@pytest.mark.slow
def test_a_secret_that_was_deleted_is_made_again_as_it_was(scene: Scene) -> None:
    """With the same keys: what was published stays valid. Only credentials of the store are new."""
    scene.apply(tiny_job())
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    before = scene.must_get(SECRETS, "tiny-credentials")
    scene.kubectl("delete", "secret", "tiny-credentials")
    again = scene.until(lambda: scene.get(SECRETS, "tiny-credentials"), lambda secret: secret is not None)
    assert again is not None
    assert again["metadata"]["uid"] != before["metadata"]["uid"]
    for key in ("weights__signing_seed", "ledger__key", "nats-credentials-trainer"):
        assert again["data"][key] == before["data"][key]
