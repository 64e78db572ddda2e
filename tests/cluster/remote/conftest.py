"""Two real control planes without nodes: one with the operator, one that pools are sent to. Objects go with their
owners, pods are never run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_planes import NewControllerManager, NewControlPlane
from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import QUICK, OperatorProcess, grant_cluster_role
from tests.support.operator.scene import Scene
from tests.support.remote.cuttable_line import CuttableLine
from tests.support.remote.far_side import FarSide
from tests.support.template_process import TemplateProcess
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import GARBAGE_COLLECTOR
from trimtab.kube.access import load_access


@pytest.fixture(scope="package")
def remote_plane(
    new_control_plane: NewControlPlane, new_controller_manager: NewControllerManager
) -> Iterator[ControlPlane]:
    with new_control_plane() as plane, new_controller_manager(plane, GARBAGE_COLLECTOR):
        yield plane


@pytest.fixture(scope="package")
def control_plane(
    new_control_plane: NewControlPlane, new_controller_manager: NewControllerManager
) -> Iterator[ControlPlane]:
    with new_control_plane() as plane:
        grant_cluster_role(plane)
        with new_controller_manager(plane, GARBAGE_COLLECTOR):
            yield plane


@pytest.fixture(scope="session")
def remote_credentials() -> dict[str, str]:
    """What pods elsewhere dial with."""
    return {"TRIMTAB_REMOTE_NATS__SERVERS": "nats://nats.example.org:4222"}


@pytest.fixture(scope="package")
def operator(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    remote_credentials: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    process = ForkedOperator(
        operator_template,
        tmp_path_factory.mktemp("operator"),
        plane=control_plane,
        environment=servers | remote_credentials | QUICK,
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
    scene.kubectl("delete", "rljobs", "--all", "--wait=false")


@pytest.fixture
def far(remote_plane: ControlPlane, scene: Scene, tmp_path: Path) -> Iterator[FarSide]:
    port = int(remote_plane.apiserver.url.rpartition(":")[2])
    with CuttableLine(port) as line:
        yield FarSide.prepare(remote_plane, line, scene, namespace=f"guests-{uuid.uuid4().hex[:8]}")
