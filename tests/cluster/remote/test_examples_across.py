"""Shipped manifests with an operator and two clusters: those for production become the pods that they should, and the
job over two clusters trains in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.curves.running import prepare, variants, write_manifest
from tests.support.control_planes import NewControllerManager
from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import QUICK, OperatorProcess
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.remote.far_side import FarSide, kubeconfig_secret
from tests.support.remote.two_planes import control_plane as control_plane
from tests.support.remote.two_planes import remote_plane as remote_plane
from tests.support.template_process import TemplateProcess
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import GARBAGE_COLLECTOR
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[3]
_PRODUCTION = _ROOT / "examples" / "production"
_PATIENCE_S = 400.0
_STEPS = 6
_ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def operator(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    """Both clusters are on this machine, so pods there dial what pods here do."""
    environment = servers | QUICK | {"TRIMTAB_DELETION_DEADLINE_S": "60"}
    process = ForkedOperator(
        operator_template, tmp_path_factory.mktemp("operator"), plane=control_plane, environment=environment
    ).start()
    yield process
    assert process.stop() == 0, process.log[-1500:]


@pytest.fixture
def no_nodes(
    control_plane: ControlPlane, remote_plane: ControlPlane, new_controller_manager: NewControllerManager
) -> Iterator[None]:
    """Pods stay pending, and go with their owners."""
    with ExitStack() as stack:
        for plane in (control_plane, remote_plane):
            stack.enter_context(new_controller_manager(plane, GARBAGE_COLLECTOR))
        yield


@pytest.fixture
def nodes(
    control_plane: ControlPlane, remote_plane: ControlPlane, controllers: ControllerAssets, tmp_path: Path
) -> Iterator[None]:
    with ExitStack() as stack:
        for number, plane in enumerate((control_plane, remote_plane)):
            stack.enter_context(
                DevelopmentCluster(
                    tmp_path / f"cluster-{number}", control_plane=plane, assets=controllers, host_paths_allowed=True
                )
            )
        yield


def _read(file: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(file.read_text())
    return manifest


def _gpus(container: dict[str, Any]) -> str | None:
    limit: str | None = container["resources"]["limits"].get("nvidia.com/gpu")
    return limit


@pytest.mark.usefixtures("no_nodes")
def test_qwen3_8b_becomes_ranks_and_engines_with_a_gpu_each(scene: Scene) -> None:
    scene.apply(_read(_PRODUCTION / "qwen3-8b.yaml"))
    ranks = [f"qwen3-8b-math-solver-trainer-{rank}" for rank in range(4)]
    samplers = [f"qwen3-8b-math-gpus-rollout-{number}" for number in range(6)]
    pods = scene.has_pods("qwen3-8b-math-dataflow-0", *ranks, *samplers)
    for name in ranks:
        (trainer,) = pods[name]["spec"]["containers"]
        assert _gpus(trainer) == "1"
        assert pods[name]["spec"]["nodeSelector"]
        assert "nvidia.com/gpu" in [entry["key"] for entry in pods[name]["spec"]["tolerations"]]
    for name in samplers:
        (engine,) = pods[name]["spec"]["initContainers"]
        assert _gpus(engine) == "1"
        assert engine["command"][-3:] == ["--tp-size=1", "--mem-fraction-static=0.85", "--context-length=16384"]
    _delete(scene, "qwen3-8b-math")


@pytest.mark.usefixtures("no_nodes")
def test_qwen3_14b_samples_at_home_and_in_the_other_cluster(scene: Scene, far: FarSide) -> None:
    job = _read(_PRODUCTION / "qwen3-14b.yaml")
    job["spec"]["pools"][1]["cluster"]["namespace"] = far.namespace
    scene.apply(kubeconfig_secret(far.kubeconfig()), job)
    there = far.has_pods(*(f"qwen3-14b-math-far-rollout-{number}" for number in range(4)))
    for pod in there.values():
        (engine,) = pod["spec"]["initContainers"]
        assert _gpus(engine) == "1"
    here = scene.until(lambda: scene.pods("rollout"), lambda pods: len(pods) == 4)
    assert {_gpus(pod["spec"]["initContainers"][0]) for pod in here.values()} == {"2"}
    (trainer,) = scene.until(lambda: scene.pods("trainer"), lambda pods: len(pods) == 1).values()
    assert _gpus(trainer["spec"]["containers"][0]) == "8"
    _delete(scene, "qwen3-14b-math")
    far.is_empty()


@pytest.mark.usefixtures("nodes")
def test_the_job_over_two_clusters_trains_in_both(scene: Scene, far: FarSide, tmp_path: Path) -> None:
    """As its README says, but for steps that are smaller and do not end, and files on a volume."""
    folder = tmp_path / "remote_pool"
    prepare("remote_pool", folder, seed=0)
    job = in_a_cluster(write_manifest(variants("remote_pool")["job"], folder, seed=0, steps=_ENDLESS))
    home, there = job["spec"]["pools"]
    there["template"] = home["template"]
    there["cluster"]["namespace"] = far.namespace
    scene.apply(kubeconfig_secret(far.kubeconfig()), job)
    scene.says(ROLLOUT_POOLS, "two-clusters-far", "Reachable", "Connected", timeout_s=_PATIENCE_S)
    for pool in ("two-clusters-home", "two-clusters-far"):
        scene.until(partial(_ready, scene, pool), lambda ready: ready == 1, timeout_s=_PATIENCE_S)
    # From here on nobody but the far pool samples: what is trained on beyond what was waiting is its own.
    scene.kubectl("scale", "rolloutpool/two-clusters-home", "--replicas=0")
    scene.until(lambda: scene.pods("two-clusters-home"), lambda pods: not pods)
    begun = _step(scene)
    scene.until(lambda: _step(scene), lambda step: step >= begun + _STEPS, timeout_s=_PATIENCE_S)
    _delete(scene, "two-clusters")
    far.is_empty()


def _ready(scene: Scene, pool: str) -> int:
    return int(((scene.get(ROLLOUT_POOLS, pool) or {}).get("status") or {}).get("readyReplicas") or 0)


def _step(scene: Scene) -> int:
    return int(job_status(scene, "two-clusters").get("step") or 0)


def _delete(scene: Scene, job: str) -> None:
    scene.kubectl("delete", "rljob", job, "--wait=true", "--timeout=300s")
    for resource in (RLJOBS, TRAINERS, ROLLOUT_POOLS, PODS):
        scene.until(partial(scene.listed, resource), lambda left: left == [])
