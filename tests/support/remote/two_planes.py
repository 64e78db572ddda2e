"""Two control planes of a module's own: nodes there run what its jobs ask for, and nothing that other tests left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control_planes import NewControlPlane
from tests.support.operator.operator_process import grant_cluster_role
from trimtab.embedded.kube.control_plane import ControlPlane


@pytest.fixture(scope="module")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """The one with the operator."""
    with new_control_plane() as plane:
        grant_cluster_role(plane)
        yield plane


@pytest.fixture(scope="module")
def remote_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """The one that pools are sent to."""
    with new_control_plane() as plane:
        yield plane
