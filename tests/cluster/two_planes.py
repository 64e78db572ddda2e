"""Two control planes of a module's own: nodes there run what its jobs ask for, and nothing that other tests left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.operator.operator_process import grant_cluster_role
from trimtab.embedded.kube.control_plane import ControlPlane


@pytest.fixture(scope="module")
def control_plane(start_control_plane: Callable[[], ControlPlane]) -> ControlPlane:
    """The one with the operator."""
    plane = start_control_plane()
    grant_cluster_role(plane)
    return plane


@pytest.fixture(scope="module")
def remote_plane(start_control_plane: Callable[[], ControlPlane]) -> ControlPlane:
    """The one that pools are sent to."""
    return start_control_plane()
