"""A job trains a real model with pods in two clusters; those of the second reach NATS and object storage over slow
lines that are cut for a minute, then for so long that the cluster counts as lost, and come back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import QUICK, OperatorProcess
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from tests.support.remote.cuttable_line import CuttableLine
from tests.support.remote.far_side import FarSide, kubeconfig_secret
from tests.support.remote.two_planes import control_plane as control_plane
from tests.support.remote.two_planes import remote_plane as remote_plane
from tests.support.template_process import TemplateProcess
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.resources import ROLLOUT_POOLS

pytestmark = pytest.mark.slow

_ENDLESS = 1_000_000
_PATIENCE_S = 400.0
_CUT_S = 60.0
_LOST_AFTER_S = 300
_LOST_SOON_S = 8
_BYTES_PER_SECOND = 4e6


@dataclass(frozen=True)
class Lines:
    """Everything that the far pods dial."""

    nats: CuttableLine
    store: CuttableLine

    def cut(self) -> None:
        self.nats.cut()
        self.store.cut()

    def mend(self) -> None:
        self.nats.mend()
        self.store.mend()


@pytest.fixture
def lines(servers: dict[str, str]) -> Iterator[Lines]:
    def port(address: str) -> int:
        found = urlsplit(address).port
        assert found is not None
        return found

    with (
        CuttableLine(port(servers["TRIMTAB_NATS__SERVERS"]), bytes_per_second=_BYTES_PER_SECOND) as nats,
        CuttableLine(port(servers["TRIMTAB_OBJECT_STORE__ENDPOINT_URL"]), bytes_per_second=_BYTES_PER_SECOND) as store,
    ):
        yield Lines(nats, store)


@pytest.fixture
def operator(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    lines: Lines,
    tmp_path: Path,
) -> Iterator[OperatorProcess]:
    dialled = {name: value for name, value in servers.items() if "NATS__" in name or "OBJECT_STORE__" in name}
    remote = {name.replace("TRIMTAB_", "TRIMTAB_REMOTE_", 1): value for name, value in dialled.items()} | {
        "TRIMTAB_REMOTE_NATS__SERVERS": f"nats://{LOOPBACK}:{lines.nats.port}",
        "TRIMTAB_REMOTE_OBJECT_STORE__ENDPOINT_URL": f"http://{LOOPBACK}:{lines.store.port}",
    }
    environment = servers | remote | QUICK | {"TRIMTAB_DELETION_DEADLINE_S": "60"}
    process = ForkedOperator(
        operator_template, tmp_path / "operator", plane=control_plane, environment=environment
    ).start()
    yield process
    assert process.stop() == 0, process.log[-1500:]


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


def _step(scene: Scene) -> int:
    return int(job_status(scene, "learns").get("step") or 0)


def _ready(scene: Scene, pool: str) -> int:
    return int(((scene.get(ROLLOUT_POOLS, pool) or {}).get("status") or {}).get("readyReplicas") or 0)


def _lives(pods: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    """Pods by uid, with how often each container was restarted."""
    return {
        pod["metadata"]["uid"]: [
            entry["restartCount"]
            for entry in (*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"])
        ]
        for pod in pods.values()
    }


def _trains_on(scene: Scene, *, steps: int) -> None:
    begun = _step(scene)
    scene.until(lambda: _step(scene), lambda step: step >= begun + steps, timeout_s=_PATIENCE_S)


@pytest.mark.usefixtures("nodes")
def test_a_job_trains_across_clusters_that_are_cut_off_lost_and_back(
    scene: Scene, far: FarSide, lines: Lines, tmp_path: Path
) -> None:
    job = in_a_cluster(make_quickstart(tmp_path, name="learns", max_steps=_ENDLESS))
    home = job["spec"]["pools"][0]
    there = home | far.pool(replicas=2, gracePeriodSeconds=10, lostAfterSeconds=_LOST_AFTER_S)
    job["spec"]["pools"].append(there)
    scene.apply(kubeconfig_secret(far.kubeconfig()), job)
    scene.until(lambda: _ready(scene, "learns-far"), lambda ready: ready == 2, timeout_s=_PATIENCE_S)
    _trains_on(scene, steps=2)
    before = _lives(far.pods())

    # A minute without the lines: nothing is killed or moved, and home trains on.
    far.line.cut()
    lines.cut()
    cut_at = time.monotonic()
    scene.says(ROLLOUT_POOLS, "learns-far", "Reachable", "Unreachable")
    _trains_on(scene, steps=3)
    scene.until(time.monotonic, lambda now: now >= cut_at + _CUT_S, timeout_s=_PATIENCE_S)
    assert _lives(far.pods()) == before
    assert len(scene.pods("learns-local")) == 1
    moved = lines.nats.bytes_moved
    far.line.mend()
    lines.mend()
    scene.says(ROLLOUT_POOLS, "learns-far", "Reachable", "Connected")
    scene.until(lambda: lines.nats.bytes_moved, lambda now: now > moved)

    # Lost: what was there is built up at home, and trained with.
    there["cluster"]["lostAfterSeconds"] = _LOST_SOON_S
    scene.apply(job)
    scene.until(
        lambda: scene.must_get(ROLLOUT_POOLS, "learns-far")["spec"]["cluster"],
        lambda cluster: cluster["lostAfterSeconds"] == _LOST_SOON_S,
    )
    far.line.cut()
    lines.cut()
    scene.says(ROLLOUT_POOLS, "learns-far", "Reachable", "Lost")
    scene.until(lambda: len(scene.pods("learns-local")), lambda pods: pods == 3, timeout_s=_PATIENCE_S)
    scene.until(lambda: _ready(scene, "learns-local"), lambda ready: ready == 3, timeout_s=_PATIENCE_S)
    _trains_on(scene, steps=3)
    # Meanwhile less is wanted there. Nobody can say so to the pods, which are alive behind the cut.
    scene.kubectl("scale", "rolloutpool/learns-far", "--replicas=1")
    scene.until(lambda: len(scene.pods("learns-local")), lambda pods: pods == 2, timeout_s=_PATIENCE_S)
    assert _lives(far.pods()) == before

    # Back: what is too much there goes, and home gives back what it had built up.
    far.line.mend()
    lines.mend()
    scene.says(ROLLOUT_POOLS, "learns-far", "Reachable", "Connected")
    left = scene.until(far.pods, lambda pods: len(pods) == 1, timeout_s=_PATIENCE_S)
    assert _lives(left).items() < before.items()
    scene.until(lambda: len(scene.pods("learns-local")), lambda pods: pods == 1, timeout_s=_PATIENCE_S)

    # From here on nobody but the far pool samples: what is trained on beyond what was waiting is its own.
    scene.kubectl("scale", "rolloutpool/learns-local", "--replicas=0")
    scene.until(lambda: scene.pods("learns-local"), lambda pods: not pods, timeout_s=_PATIENCE_S)
    _trains_on(scene, steps=12)
    assert _lives(far.pods()).items() < before.items()

    scene.kubectl("delete", "rljob", "learns", "--wait=true", "--timeout=300s")
    far.is_empty()
    scene.until(lambda: scene.listed(ROLLOUT_POOLS), lambda pools: pools == [])
