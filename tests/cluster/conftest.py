"""A real control plane for the tests that need no more than one, and a namespace of its own for each test."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pytest

from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import ControlPlaneAssets, control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane


class Kubectl(Protocol):
    def __call__(
        self, *args: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


NewControlPlane = Callable[[], AbstractContextManager[ControlPlane]]


@pytest.fixture(scope="session")
def assets() -> ControlPlaneAssets:
    return control_plane_assets()


@pytest.fixture(scope="session")
def new_control_plane(assets: ControlPlaneAssets, tmp_path_factory: pytest.TempPathFactory) -> NewControlPlane:
    """Control planes with the CRDs installed. Even an idle one costs 3 % of a core: none outlives those who need it."""

    @contextmanager
    def running() -> Iterator[ControlPlane]:
        with ControlPlane(tmp_path_factory.mktemp("control-plane"), assets=assets) as plane:
            plane.install(custom_resource_definitions())
            yield plane

    return running


@pytest.fixture(scope="package")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    with new_control_plane() as plane:
        yield plane


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    control_plane.kubectl("create", "namespace", name)
    return name
