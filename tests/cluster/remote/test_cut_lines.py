"""The line to the other cluster is cut, hangs and comes back: nothing is killed, nothing is moved too soon, and what
was left is collected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.operator.operator_process import OperatorProcess
from tests.support.operator.scene import Scene, tiny_job
from tests.support.remote.far_side import SECRET, FarSide, kubeconfig_secret
from trimtab.kube.resources import EVENTS, ROLLOUT_POOLS
from trimtab.kube.timestamps import epoch

pytestmark = pytest.mark.slow

HOME = {"name": "home", "replicas": 1, "gracePeriodSeconds": 5}
FAR = ("tiny-far-rollout-0", "tiny-far-rollout-1")


def _begin(scene: Scene, far: FarSide, **fields: Any) -> dict[str, dict[str, Any]]:
    scene.apply(kubeconfig_secret(far.kubeconfig()), tiny_job(pools=[HOME, far.pool(replicas=2, **fields)]))
    pods = far.has_pods(*FAR)
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")
    return pods


def _uids(pods: dict[str, dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}


def _status(scene: Scene, name: str) -> dict[str, Any]:
    return dict(scene.must_get(ROLLOUT_POOLS, name).get("status") or {})


def _replicas(scene: Scene, name: str) -> int:
    return int(scene.must_get(ROLLOUT_POOLS, name)["spec"]["replicas"])


@contextmanager
def _no_address_in(scene: Scene, far: FarSide) -> Iterator[None]:
    """Where the cluster is, and how to get in, stays in the Secret."""
    yield
    told = scene.operator.log + str(scene.listed(ROLLOUT_POOLS)) + str(scene.listed(EVENTS))
    assert str(far.line.port) not in told


@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_while_the_line_is_down_nothing_happens_there_and_then_it_goes_on(
    scene: Scene, far: FarSide, fault: str
) -> None:
    with _no_address_in(scene, far):
        before = _uids(_begin(scene, far))
        if fault == "cut":
            far.line.cut()
        else:
            far.line.hang()
        message = scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Unreachable")
        assert "does not answer" in message
        assert _status(scene, "tiny-far")["replicas"] == 2
        # At home all goes on, also for the pool that cannot follow.
        scene.kubectl("scale", "rolloutpool/tiny-home", "--replicas=2")
        scene.until(lambda: scene.pods("home"), lambda pods: len(pods) == 2)
        scene.kubectl("scale", "rolloutpool/tiny-far", "--replicas=3")
        scene.until(lambda: scene.reasons("tiny-far"), lambda reasons: "ClusterUnreachable" in reasons)
        assert _uids(far.pods()) == before
        far.line.mend()
        scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")
        after = far.has_pods(*FAR, "tiny-far-rollout-2")
        assert before < _uids(after)
        assert _replicas(scene, "tiny-home") == 2
        scene.until(lambda: scene.reasons("tiny-far"), lambda reasons: "ClusterReachable" in reasons)


def test_a_lost_cluster_is_covered_at_home_until_it_is_back(scene: Scene, far: FarSide) -> None:
    before = _uids(_begin(scene, far, lostAfterSeconds=3))
    far.line.cut()
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Lost")
    scene.until(lambda: scene.pods("home"), lambda pods: len(pods) == 3)
    assert _status(scene, "tiny-far")["readyReplicas"] == 0
    home = scene.must_get(ROLLOUT_POOLS, "tiny-home")
    assert home["metadata"]["annotations"]["rl.trimtab.dev/covers"] == '{"tiny-far": 2}'
    scene.until(lambda: scene.reasons("tiny-far"), lambda reasons: "ClusterLost" in reasons)
    # Meanwhile it is made smaller: what is too much there is drained when it is back, and the cover undone.
    scene.kubectl("scale", "rolloutpool/tiny-far", "--replicas=1")
    scene.until(lambda: _replicas(scene, "tiny-home"), lambda replicas: replicas == 2)
    far.line.mend()
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")
    left = scene.until(far.pods, lambda pods: len(pods) == 1)
    assert _uids(left) < before
    scene.until(lambda: _replicas(scene, "tiny-home"), lambda replicas: replicas == 1)
    scene.until(lambda: scene.pods("home"), lambda pods: len(pods) == 1)


def test_a_killed_operator_does_not_begin_to_count_anew(scene: Scene, far: FarSide, operator: OperatorProcess) -> None:
    before = _uids(_begin(scene, far, lostAfterSeconds=12))
    far.line.cut()
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Unreachable")
    since = scene.condition(ROLLOUT_POOLS, "tiny-far", "Reachable")["lastTransitionTime"]
    ready = operator.log.count("operator_ready")
    operator.kill()
    operator.start()
    scene.until(lambda: operator.log.count("operator_ready"), lambda count: count > ready)
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Lost")
    condition = scene.condition(ROLLOUT_POOLS, "tiny-far", "Reachable")
    assert condition["lastTransitionTime"] == since
    assert time.time() >= epoch(since) + 12
    scene.until(lambda: _replicas(scene, "tiny-home"), lambda replicas: replicas == 3)
    far.line.mend()
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")
    scene.until(lambda: _replicas(scene, "tiny-home"), lambda replicas: replicas == 1)
    assert _uids(far.pods()) == before


def test_a_pool_that_is_deleted_while_its_cluster_is_away_goes_and_its_things_are_collected_later(
    scene: Scene, far: FarSide
) -> None:
    _begin(scene, far)
    # Another pool keeps the kubeconfig in use.
    scene.apply(tiny_job("other", pools=[far.pool()]))
    scene.until(far.pods, lambda pods: len(pods) == 3)
    far.line.cut()
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Unreachable")
    scene.kubectl("delete", "rolloutpool", "tiny-far", "--wait=false")
    scene.apply(tiny_job(pools=[HOME]))
    scene.until(lambda: scene.get(ROLLOUT_POOLS, "tiny-far"), lambda pool: pool is None)
    scene.until(lambda: scene.reasons("tiny-far"), lambda reasons: "CleanupIncomplete" in reasons)
    assert len(far.pods()) == 3
    far.line.mend()
    scene.until(far.pods, lambda pods: set(pods) == {"other-far-rollout-0"})


def test_a_pool_that_is_moved_away_from_a_lost_cluster_is_not_held_back(scene: Scene, far: FarSide) -> None:
    _begin(scene, far, lostAfterSeconds=3)
    far.line.cut()
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Lost")
    elsewhere = far.pool(replicas=2, lostAfterSeconds=3)
    elsewhere["cluster"]["namespace"] = "another"
    scene.apply(tiny_job(pools=[HOME, elsewhere]))
    scene.until(lambda: scene.reasons("tiny-far"), lambda reasons: "CleanupIncomplete" in reasons)
    scene.until(
        lambda: scene.must_get(ROLLOUT_POOLS, "tiny-far")["metadata"],
        lambda metadata: "rl.trimtab.dev/placement" not in metadata["annotations"],
    )
    far.line.mend()
    # No pool is in that namespace any more: what is there is left to whoever reads the event.
    assert len(far.pods()) == 2


def test_a_kubeconfig_that_is_exchanged_is_used_at_once(scene: Scene, far: FarSide) -> None:
    before = _uids(_begin(scene, far))
    broken = far.kubeconfig()
    broken["users"][0]["user"]["token"] = "no-token-of-anybody"
    scene.apply(kubeconfig_secret(broken))
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Unauthorized")
    scene.kubectl("delete", "secret", SECRET)
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "KubeConfigMissing")
    scene.apply(kubeconfig_secret(far.kubeconfig()))
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "Connected")
    assert _uids(far.pods()) == before


def test_bad_kubeconfigs_are_refused_by_name_and_quoted_nowhere(scene: Scene, far: FarSide) -> None:
    scene.apply(tiny_job(pools=[HOME, far.pool()]))
    scene.says(ROLLOUT_POOLS, "tiny-far", "Reachable", "KubeConfigMissing")
    config = far.kubeconfig()
    token = config["users"][0]["user"]["token"]
    secrets = [token, str(far.line.port), "hunter2"]

    insecure = far.kubeconfig()
    insecure["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    program = far.kubeconfig()
    program["users"][0]["user"]["exec"] = {"command": "/bin/hunter2"}
    for refused, reason, field in (
        (insecure, "InsecureKubeConfig", "insecure-skip-tls-verify"),
        (program, "InsecureKubeConfig", "user.exec"),
        ("{hunter2: [", "BadKubeConfig", "YAML"),
    ):
        scene.apply(kubeconfig_secret(refused))
        message = scene.until(
            lambda: str(scene.condition(ROLLOUT_POOLS, "tiny-far", "Reachable").get("message")),
            lambda message: field in message,  # noqa: B023 - called in this turn
        )
        assert scene.condition(ROLLOUT_POOLS, "tiny-far", "Reachable")["reason"] == reason
        assert not [secret for secret in secrets if secret in message]
    assert far.pods() == {}
    told = scene.operator.log + str(scene.listed(ROLLOUT_POOLS)) + str(scene.listed(EVENTS))
    assert not [secret for secret in secrets if secret in told]
    scene.apply(kubeconfig_secret(config))
    far.has_pods("tiny-far-rollout-0")
