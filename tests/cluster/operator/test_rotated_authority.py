"""The authority behind NATS and object storage is exchanged under a job that runs: every role goes on in the process it
is, because all of them dial through trimtab.fabric, and because the operator hands on what its own files say.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.control_planes import NewControlPlane
from tests.support.fabric.tls_servers import Certificates, TlsNats, TlsSeaweed, new_authority
from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import grant_cluster_role
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from tests.support.template_process import TemplateProcess
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.fabric.settings import environment_for
from trimtab.kube.access import load_access
from trimtab.kube.certificates import CertificateAuthority
from trimtab.kube.resources import SECRETS

pytestmark = pytest.mark.slow

_ENDLESS = 1_000_000
_STEP_S = 400.0
_NAMESPACE = "rotated"
_FILES = ("nats-tls-ca", "object-store-ca")


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(folder=tmp_path)


@pytest.fixture
def first(certificates: Certificates) -> CertificateAuthority:
    authority = new_authority()
    certificates.show(authority)
    certificates.trust(authority)
    return authority


@pytest.fixture
def servers(
    tmp_path: Path, certificates: Certificates, first: CertificateAuthority
) -> Iterator[tuple[TlsNats, TlsSeaweed]]:
    with (
        TlsNats(tmp_path / "nats", certificates=certificates) as nats,
        TlsSeaweed(tmp_path / "seaweedfs", certificates=certificates) as store,
    ):
        yield nats, store


@pytest.fixture
def scene(
    new_control_plane: NewControlPlane,
    controllers: ControllerAssets,
    operator_template: TemplateProcess,
    servers: tuple[TlsNats, TlsSeaweed],
    tmp_path: Path,
) -> Iterator[Scene]:
    nats, store = servers
    sections = {"NATS": nats.address, "OBJECT_STORE": store.tls_settings}
    environment = {
        name.replace("TRIMTAB_", f"TRIMTAB_{section}__", 1): value
        for section, settings in sections.items()
        for name, value in environment_for(settings).items()
    }
    environment["TRIMTAB_NATS_ACCOUNTS__SEED_FILE"] = str(nats.operator_seed_file)
    # A machine that is busy for a while must not cost it the lease.
    environment["TRIMTAB_LEASE__DURATION_S"] = "120"
    with new_control_plane() as plane:
        grant_cluster_role(plane)
        plane.kubectl("create", "namespace", _NAMESPACE)
        with (
            _running(
                ForkedOperator(operator_template, tmp_path / "operator", plane=plane, environment=environment)
            ) as operator,
            DevelopmentCluster(tmp_path / "cluster", control_plane=plane, assets=controllers, host_paths_allowed=True),
        ):
            yield Scene(plane=plane, namespace=_NAMESPACE, access=load_access(plane.kubeconfig()), operator=operator)


@contextmanager
def _running(operator: ForkedOperator) -> Iterator[ForkedOperator]:
    operator.start()
    try:
        yield operator
    finally:
        operator.stop()


def _progress(scene: Scene) -> tuple[int, int]:
    status = job_status(scene, "learns")
    versions = [policy["version"] for policy in status.get("policies") or ()]
    return int(status.get("step", 0)), max(versions, default=0)


def _goes_on(scene: Scene) -> None:
    """Steps come by NATS through all roles, the operator included; versions are written to and read from the store."""
    step, version = _progress(scene)
    scene.until(
        lambda: _progress(scene), lambda seen: seen[0] >= step + 3 and seen[1] >= version + 2, timeout_s=_STEP_S
    )


def _lives(scene: Scene) -> dict[str, Any]:
    """Who runs, and how often it was started."""
    return {
        name: (
            pod["metadata"]["uid"],
            [entry["restartCount"] for entry in pod["status"].get("containerStatuses") or ()],
        )
        for name, pod in scene.pods().items()
    }


def _stored(scene: Scene) -> list[bytes]:
    data = scene.must_get(SECRETS, "learns-credentials")["data"]
    return [base64.b64decode(data[name]) for name in _FILES]


def _mounted(node: Path) -> set[bytes]:
    return {file.read_bytes() for name in _FILES for file in node.rglob(name)}


def test_a_rotated_authority_reaches_running_pods_of_every_role(
    scene: Scene,
    servers: tuple[TlsNats, TlsSeaweed],
    certificates: Certificates,
    first: CertificateAuthority,
    tmp_path: Path,
) -> None:
    scene.apply(in_a_cluster(make_quickstart(tmp_path, name="learns", max_steps=_ENDLESS)))
    scene.until(lambda: _progress(scene), lambda seen: seen[1] >= 1, timeout_s=_STEP_S)
    lives = _lives(scene)
    roles = {pod["metadata"]["labels"]["rl.trimtab.dev/role"] for pod in scene.pods().values()}
    assert roles == {"dataflow", "rollout", "trainer"}
    second = new_authority()
    # First both are trusted and the servers change, then the old one is trusted no more and they start once again.
    for trusted in ((first, second), (second,)):
        certificates.trust(*trusted)
        content = certificates.trusted_file.read_bytes()
        scene.until(lambda: _stored(scene), lambda stored: stored == [content] * 2)  # noqa: B023 - called in this turn
        scene.until(lambda: _mounted(tmp_path / "cluster" / "node"), lambda mounted: mounted == {content})  # noqa: B023
        certificates.show(second)
        for server in servers:
            server.kill()
            server.start()
        _goes_on(scene)
    assert _lives(scene) == lives
