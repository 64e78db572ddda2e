"""One development node for these tests, with room for anything but the pods that ask for too much on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.devcluster.bench import Bench
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access

CAPACITY = ("cpu=64", "memory=64Gi", "example.com/widget=2")


@pytest.fixture(scope="package")
def node(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevelopmentNode]:
    folder = tmp_path_factory.mktemp("node")
    with DevelopmentNode(folder, control_plane=control_plane, capacity=CAPACITY) as node:
        yield node


@pytest.fixture
def bench(node: DevelopmentNode, control_plane: ControlPlane, namespace: str) -> Bench:
    access = load_access(control_plane.kubeconfig())
    return Bench(control_plane, namespace=namespace, node=node, access=access)
