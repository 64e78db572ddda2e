"""Ranks that a real ResourceQuota refuses: few attempts, no restart, no status in between, and a gang whole or not at
all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.control_planes import NewControllerManager
from tests.support.operator.gpu_quota import GpuQuota
from tests.support.operator.scene import TIMEOUT_S, Scene, tiny_job
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import RESOURCE_QUOTA
from trimtab.kube.resources import PODS, RLJOBS, TRAINERS

DATAFLOW, WORKER = "tiny-dataflow-0", "tiny-home-rollout-0"
RANKS = ("tiny-solver-trainer-0", "tiny-solver-trainer-1")
_REFUSED = re.compile(
    r'^apiserver_request_total\{(?=.*code="403")(?=.*resource="pods")(?=.*verb="POST").*\} (\S+)$', re.M
)


def _job(*, ranks: int) -> dict[str, Any]:
    settings = {"replicas": ranks, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return tiny_job(policies=[{"name": "solver", "model": {"uri": "/models/tiny"}, "trainer": settings}])


def _refusals(scene: Scene) -> int:
    """Pods that the API server has refused since it was started."""
    return int(sum(float(count) for count in _REFUSED.findall(scene.kubectl("get", "--raw", "/metrics"))))


def _trainer(scene: Scene) -> dict[str, Any]:
    return scene.must_get(TRAINERS, "tiny-solver")


def _is_refused(scene: Scene) -> None:
    message = scene.says(TRAINERS, "tiny-solver", "Accepted", "PodRefused")
    assert "exceeded quota" in message
    assert "raise the ResourceQuota" in message


def _all_run(scene: Scene, *ranks: str, timeout_s: float = TIMEOUT_S) -> None:
    """There, and not behind a gate."""
    scene.until(
        lambda: [(scene.get(PODS, name) or {"spec": {"schedulingGates": "none"}})["spec"] for name in ranks],
        lambda specs: not any(spec.get("schedulingGates") for spec in specs),
        timeout_s=timeout_s,
    )


def _seen_for(scene: Scene, seconds: float) -> tuple[set[str], list[dict[str, Any]]]:
    """Versions of the trainer, and ranks, in this time."""
    versions, ranks, end = set(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        versions.add(str(_trainer(scene)["metadata"]["resourceVersion"]))
        ranks += list(scene.pods("trainer").values())
    return versions, ranks


@pytest.fixture
def quota_controller(control_plane: ControlPlane, new_controller_manager: NewControllerManager) -> Iterator[None]:
    with new_controller_manager(control_plane, RESOURCE_QUOTA):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("quota_controller")
@pytest.mark.parametrize(
    ("ranks", "gpus"),
    [(1, 0), (2, 0), (2, 1)],
)
def test_what_does_not_fit_is_not_made_and_costs_no_restart(scene: Scene, ranks: int, gpus: int) -> None:
    before = _refusals(scene)
    quota = GpuQuota(scene, gpus=gpus)
    scene.apply(_job(ranks=ranks))
    scene.has_pods(DATAFLOW, WORKER)
    _is_refused(scene)
    scene.until(
        lambda: str(scene.condition(RLJOBS, "tiny", "Succeeded")),
        lambda told: "WaitingForTrainer" in told and "exceeded quota" in told,
    )
    error = scene.until(lambda: scene.must_get(RLJOBS, "tiny")["status"].get("lastError") or {}, bool)
    assert error["reason"] == "PodRefused"
    # The first attempts come so soon that the quota's counter may not have noticed yet who was taken back.
    scene.until(lambda: _refusals(scene) - before, lambda count: count >= 5)
    versions, seen = _seen_for(scene, 8.0)
    assert len(versions) == 1, "a status was written"
    assert all(pod["spec"]["schedulingGates"] for pod in seen), "a part of the gang could run"
    assert len({pod["metadata"]["uid"] for pod in seen}) <= 8
    assert 5 <= _refusals(scene) - before <= 9
    status = _trainer(scene)["status"]
    assert (status["attempt"], status["restarts"], status["startedAttempt"]) == (1, 0, 0)
    quota.raise_to(ranks)
    _all_run(scene, *RANKS[:ranks])
    scene.says(TRAINERS, "tiny-solver", "Accepted", "Accepted")
    status = scene.until(lambda: _trainer(scene)["status"], lambda status: status["startedAttempt"] == 1)
    assert (status["attempt"], status["restarts"]) == (1, 0)
    scene.until(lambda: scene.must_get(RLJOBS, "tiny")["status"].get("lastError"), lambda error: not error)


@pytest.mark.slow
@pytest.mark.usefixtures("quota_controller")
def test_after_ten_attempts_there_is_one_a_minute_and_recovery_within_one(scene: Scene) -> None:
    before = _refusals(scene)
    quota = GpuQuota(scene, gpus=1)
    scene.apply(_job(ranks=2))
    _is_refused(scene)
    scene.until(lambda: _refusals(scene) - before, lambda count: count >= 10)
    version, count, began = _trainer(scene)["metadata"]["resourceVersion"], _refusals(scene), time.monotonic()
    # Whatever is said on the bus, about another object or about this one wakes it; none of it makes room.
    while time.monotonic() < began + 150.0:
        scene.kubectl("annotate", "--overwrite", "rljob", "tiny", f"poke={time.monotonic():.0f}")
        time.sleep(1.0)
    assert _refusals(scene) - count in (2, 3)
    assert _trainer(scene)["metadata"]["resourceVersion"] == version
    quota.raise_to(2)
    # A minute, and what a busy machine adds to it.
    _all_run(scene, *RANKS, timeout_s=120.0)
    assert _trainer(scene)["status"]["restarts"] == 0


@pytest.mark.usefixtures("quota_controller")
def test_another_template_is_tried_at_once(scene: Scene) -> None:
    GpuQuota(scene, gpus=0)
    scene.apply(_job(ranks=2))
    _is_refused(scene)
    scene.until(lambda: scene.pods("trainer"), lambda pods: not pods)
    free = _job(ranks=2)
    free["spec"]["policies"][0]["trainer"]["resources"] = {"requests": {"cpu": "100m"}}
    scene.apply(free)
    _all_run(scene, *RANKS)
