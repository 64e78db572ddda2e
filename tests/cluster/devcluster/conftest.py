"""One development cluster for these tests, with room for anything but the pods that ask for too much on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.devcluster.bench import Bench
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access

CAPACITY = ("cpu=64", "memory=64Gi", "example.com/widget=2")


@pytest.fixture(scope="package")
def cluster(
    control_plane: ControlPlane, controllers: ControllerAssets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevelopmentCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with DevelopmentCluster(folder, control_plane=control_plane, assets=controllers, capacity=CAPACITY) as cluster:
        yield cluster


@pytest.fixture
def bench(cluster: DevelopmentCluster, control_plane: ControlPlane, namespace: str) -> Bench:
    access = load_access(control_plane.kubeconfig())
    return Bench(control_plane, namespace=namespace, node=cluster.node, access=access)
