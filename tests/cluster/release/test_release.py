"""The chart as it is lived with, on a development node: installed with its defaults, a job trains with the rights that
the chart gives, an upgrade disturbs nobody, and what is left at the end is what people would want back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import helm_python
import pytest

from tests.support.chart.rendering import CHART
from tests.support.chart.workloads import Workloads
from tests.support.operator.quickstart_manifest import in_a_cluster
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import ControllerAssets, ControlPlaneAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import CONTROLLERS, WORKLOADS

pytestmark = pytest.mark.slow

_HOME, _TEAM, _RELEASE = "trimtab-system", "team", "trimtab"
_JOB = "learns"
_ENDLESS = 1_000_000
_PATIENCE_S = 400.0
_KINDS = (
    "deploy,statefulset,service,secret,configmap,serviceaccount,role,rolebinding,networkpolicy,pdb,pvc,pod,lease,"
    "clusterrole,clusterrolebinding,crd"
)
Seen = TypeVar("Seen")


@pytest.fixture
def plane(assets: ControlPlaneAssets, tmp_path: Path) -> Iterator[ControlPlane]:
    """A cluster that has never heard of us."""
    with ControlPlane(tmp_path / "control-plane", assets=assets) as plane:
        for name in (_HOME, _TEAM):
            plane.kubectl("create", "namespace", name)
        yield plane


@pytest.fixture
def cluster(plane: ControlPlane, controllers: ControllerAssets, tmp_path: Path) -> Iterator[DevelopmentCluster]:
    """Without the controllers that make pods of Deployments and StatefulSets: `Workloads` makes pods that find Services
    and claims on one machine."""
    with DevelopmentCluster(
        tmp_path / "cluster",
        control_plane=plane,
        assets=controllers,
        host_paths_allowed=True,
        controllers=[name for name in CONTROLLERS if name not in WORKLOADS],
    ) as cluster:
        yield cluster


@pytest.mark.usefixtures("cluster")
def test_install_train_upgrade_uninstall(plane: ControlPlane, tmp_path: Path) -> None:
    _until(lambda: _found(plane, "configmap", _HOME), lambda names: "ConfigMap/kube-root-ca.crt" in names)
    before = _found(plane, _KINDS, _HOME)
    workloads = Workloads(plane=plane, namespace=_HOME, claims=tmp_path / "claims")
    with helm_python.Config(kubeconfig_path=plane.kubeconfig(), namespace=_HOME) as helm:
        helm.install(CHART, _RELEASE, {}, timeout=600)
        workloads.settle()
        _ready(plane, _HOME)
        job = _with_names(in_a_cluster(make_quickstart(tmp_path, name=_JOB, max_steps=_ENDLESS)), workloads)
        plane.kubectl("-n", _TEAM, "apply", "-f", "-", stdin=json.dumps(job))
        _until(lambda: _step(plane), lambda step: step >= 2)

        running, servers = _pods(plane, _TEAM), _pods(plane, _HOME)
        assert len(running) == 3  # dataflow, worker, rank
        helm.upgrade(CHART, _RELEASE, {"operator": {"workers": 4}}, timeout=600)
        workloads.settle()
        _ready(plane, _HOME)
        changed = {name for name, life in _pods(plane, _HOME).items() if servers[name] != life}
        assert changed == {"trimtab-operator-0", "trimtab-operator-1"}
        seen = _step(plane)
        _until(lambda: _step(plane), lambda step: step >= seen + 2)
        assert _pods(plane, _TEAM) == running
        # The new operator looks after it as the old one did.
        plane.kubectl("-n", _TEAM, "scale", "rolloutpool", f"{_JOB}-local", "--replicas=2")
        _until(lambda: _pods(plane, _TEAM), lambda pods: len(pods) == 4)
        log = plane.kubectl("-n", _HOME, "logs", "trimtab-operator-0").stdout
        assert "forbidden" not in log.lower()

        training = _pods(plane, _TEAM)
        helm.uninstall(_RELEASE, timeout=600)
        workloads.settle()
        # The webhook's certificate is collected with its configuration.
        left = _until(
            lambda: _found(plane, _KINDS, _HOME) - before, lambda left: "Secret/trimtab-admission" not in left
        )
    assert left == {
        "PersistentVolumeClaim/data-trimtab-nats-0",
        "PersistentVolumeClaim/data-trimtab-object-store-0",
        "Secret/trimtab-nats-accounts",  # the key that signs accounts of jobs
        "Secret/trimtab-operator-job-keys",  # what the keys of jobs follow from
        "Lease/trimtab-operator",  # by its uid, pods in other clusters know whose they are
        "CustomResourceDefinition/rljobs.rl.trimtab.dev",
        "CustomResourceDefinition/rolloutpools.rl.trimtab.dev",
        "CustomResourceDefinition/trainers.rl.trimtab.dev",
    }
    assert _step(plane) >= 2
    assert _pods(plane, _TEAM).keys() == training.keys()
    assert any((tmp_path / "claims/data-trimtab-object-store-0").rglob("*.dat"))


def _with_names(job: dict[str, Any], workloads: Workloads) -> dict[str, Any]:
    """This machine has no DNS of the cluster."""
    spec = job["spec"]
    for part in (spec["data"], spec["policies"][0]["trainer"], spec["pools"][0]):
        part["template"]["spec"]["hostAliases"] = workloads.host_aliases()
    return job


def _step(plane: ControlPlane) -> int:
    shown = plane.kubectl("-n", _TEAM, "get", "rljob", _JOB, "-o", "jsonpath={.status.step}").stdout
    return int(shown or 0)


def _pods(plane: ControlPlane, namespace: str) -> dict[str, tuple[str, int]]:
    """uid and restarts of each."""
    listed = json.loads(plane.kubectl("-n", namespace, "get", "pods", "-o", "json").stdout)["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ())),
        )
        for pod in listed
    }


def _ready(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("-n", namespace, "wait", "pods", "--all", "--for=condition=Ready", "--timeout=300s")


def _found(plane: ControlPlane, kinds: str, namespace: str) -> set[str]:
    listed = json.loads(plane.kubectl("-n", namespace, "get", kinds, "-o", "json").stdout)["items"]
    return {f"{entry['kind']}/{entry['metadata']['name']}" for entry in listed}


def _until(look: Callable[[], Seen], holds: Callable[[Seen], bool]) -> Seen:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds(seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {_PATIENCE_S} s; last seen: {seen}")
        time.sleep(0.5)
    return seen
