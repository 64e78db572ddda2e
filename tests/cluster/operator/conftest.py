"""One operator for the session, under its own Role, and the servers that its jobs' pods dial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_planes import NewControlPlane
from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import OperatorProcess, grant_cluster_role
from tests.support.operator.scene import Scene
from tests.support.template_process import TemplateProcess
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access


@pytest.fixture(scope="package")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """One of our own: other tests' development node would run the pods that we want to see pending."""
    with new_control_plane() as plane:
        yield plane


@pytest.fixture(scope="package")
def operator(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    grant_cluster_role(control_plane)
    # A machine that is busy for a while must not cost it the lease.
    environment = servers | {
        "TRIMTAB_LEASE__DURATION_S": "120",
        # Where an agent maintainer's server is in these tests.
        "TRIMTAB_AGENT_EGRESS__ALLOWED_CIDRS": "127.0.0.0/8",
        "TRIMTAB_JOB_NETWORK__DNS_PORTS": "53",
        # Every object is looked at again after so long.
        "TRIMTAB_RESYNC_S": "20",
    }
    process = ForkedOperator(
        operator_template, tmp_path_factory.mktemp("operator"), plane=control_plane, environment=environment
    ).start()
    yield process
    assert process.stop() == 0, process.log[-1500:]
    faults = [line for line in process.log.splitlines() if "reconcile_faulted" in line or "Traceback" in line]
    assert faults == []


@pytest.fixture
def scene(control_plane: ControlPlane, operator: OperatorProcess, namespace: str) -> Iterator[Scene]:
    access = load_access(control_plane.kubeconfig())
    scene = Scene(plane=control_plane, namespace=namespace, access=access, operator=operator)
    yield scene
    # What is left pending would be run by the node of a later test.
    scene.kubectl("delete", "rljobs", "--all", "--wait=false")
    scene.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=0", "--force")


@pytest.fixture
def node(control_plane: ControlPlane, controllers: ControllerAssets, tmp_path: Path) -> Iterator[DevelopmentNode]:
    """Pods that are pending begin to run."""
    with DevelopmentCluster(
        tmp_path / "cluster", control_plane=control_plane, assets=controllers, host_paths_allowed=True
    ) as cluster:
        yield cluster.node
