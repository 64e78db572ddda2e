"""What the operator tells of pods that Kubernetes' own scheduler and a real node refuse, kill or run together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.operator.scene import Scene, sleeping_job
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.resources import RLJOBS, TRAINERS

pytestmark = pytest.mark.usefixtures("node")


@pytest.fixture(scope="module")
def node(
    control_plane: ControlPlane, controllers: ControllerAssets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with DevelopmentCluster(tmp_path_factory.mktemp("cluster"), control_plane=control_plane, assets=controllers):
        yield


def _told(scene: Scene) -> dict[str, Any]:
    return dict((scene.must_get(RLJOBS, "tiny").get("status") or {}).get("lastError") or {})


@pytest.mark.slow
def test_a_gang_runs_when_all_of_it_is_there(scene: Scene) -> None:
    scene.apply(sleeping_job(replicas=2))
    assert "2 of 2 ranks train" in scene.says(TRAINERS, "tiny-solver", "Ready", "RanksReady")
    assert scene.must_get(TRAINERS, "tiny-solver")["status"]["startedAttempt"] == 1


@pytest.mark.slow
def test_what_does_not_fit_says_so(scene: Scene) -> None:
    scene.apply(sleeping_job(resources={"requests": {"cpu": "4k"}}))
    scene.until(
        lambda: scene.condition(RLJOBS, "tiny", "Succeeded").get("message", ""),
        lambda message: "Insufficient cpu" in message and "lower resources.requests" in message,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("close", "reopen", "fix"),
    [
        (["cordon", "development"], ["uncordon", "development"], "cordoned: kubectl uncordon"),
        (
            ["taint", "node", "development", "gpu=busy:NoSchedule"],
            ["taint", "node", "development", "gpu:NoSchedule-"],
            "tolerate the taint",
        ),
    ],
    ids=["cordoned", "tainted"],
)
def test_a_closed_node_is_told(scene: Scene, close: list[str], reopen: list[str], fix: str) -> None:
    scene.plane.kubectl(*close)
    try:
        scene.apply(sleeping_job())
        scene.until(lambda: _told(scene).get("message", ""), lambda message: fix in message)
    finally:
        scene.plane.kubectl(*reopen)
    scene.until(lambda: _told(scene).get("message", ""), lambda message: fix not in message)


@pytest.mark.slow
def test_a_limit_that_kills_is_told(scene: Scene) -> None:
    fills_memory = ["python", "-c", "import time; held = b'x' * (1 << 28); time.sleep(600)"]
    small: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "trainer", "command": fills_memory}]}}}
    scene.apply(sleeping_job(resources={"limits": {"memory": "48Mi"}}, **small))
    error = scene.until(lambda: _told(scene), lambda error: error.get("reason") == "OOMKilled")
    assert "raise resources.limits.memory" in error["message"]
    assert "OOMKilled" in scene.kubectl("describe", "rljob", "tiny")
