"""Kubernetes' programs are built beside the tests that need none of them, where they are not built yet.

The build takes as long as `make test` itself. It begins when the tests have been collected. Tests that need a control
plane go after those that do not, and tests that need the scheduler and the controller manager, which are built last, go
last. Each waits for what it needs before its own time begins to count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator

import pytest

from trimtab.embedded.go_build import BuildError
from trimtab.embedded.kube.assets import (
    ControllerAssets,
    ControlPlaneAssets,
    all_built,
    control_plane_assets,
    controller_assets,
)

_TO_BUILD = "TESTS_BUILD_KUBERNETES"
"""Set by the process that was called, so that all that run tests side by side agree on their order."""
_FIRST = (None, "gw0")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_TO_BUILD] = "" if all_built() else "yes"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ[_TO_BUILD]:
        items.sort(key=lambda item: (_needs_controllers(item), _needs_control_plane(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = os.environ[_TO_BUILD] and not session.config.option.collectonly
    if wanted and os.environ.get("PYTEST_XDIST_WORKER") in _FIRST and any(map(_needs_control_plane, session.items)):
        subprocess.Popen([sys.executable, "-m", "trimtab.embedded.kube.assets"], stdout=subprocess.DEVNULL)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if os.environ[_TO_BUILD]:
        try:
            if _needs_control_plane(item):
                control_plane_assets()
            if _needs_controllers(item):
                controller_assets()
        except BuildError as error:
            pytest.exit(f"Kubernetes could not be built: {error}", returncode=pytest.ExitCode.INTERNAL_ERROR)
    return (yield)


def _needs_control_plane(item: pytest.Item) -> bool:
    return "assets" in getattr(item, "fixturenames", ())


def _needs_controllers(item: pytest.Item) -> bool:
    return "controllers" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def assets() -> ControlPlaneAssets:
    """A test that asks for it needs a control plane."""
    return control_plane_assets()


@pytest.fixture(scope="session")
def controllers() -> ControllerAssets:
    """A test that asks for it needs the scheduler or the controller manager, too."""
    return controller_assets()
