"""A real control plane for the whole session, and a namespace of its own for each test."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import ControlPlaneAssets, control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane


class Kubectl(Protocol):
    def __call__(
        self, *args: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def assets() -> ControlPlaneAssets:
    return control_plane_assets()


@pytest.fixture(scope="session")
def start_control_plane(
    assets: ControlPlaneAssets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], ControlPlane]]:
    """Starts control planes that live until the end of the session, with the CRDs installed."""
    started: list[ControlPlane] = []

    def start() -> ControlPlane:
        plane = ControlPlane(tmp_path_factory.mktemp("control-plane"), assets=assets).start()
        started.append(plane)
        plane.install(custom_resource_definitions())
        return plane

    yield start
    for plane in started:
        plane.stop()


@pytest.fixture(scope="session")
def control_plane(start_control_plane: Callable[[], ControlPlane]) -> ControlPlane:
    return start_control_plane()


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    control_plane.kubectl("create", "namespace", name)
    return name
