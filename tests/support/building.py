"""The API server and etcd are built beside the tests that need neither, where they are not built yet.

The build takes as long as `make test` itself. It begins when the tests have been collected, those that need a control
plane go last, and they wait for it before their own time begins to count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator

import pytest

from trimtab.embedded.go_build import BuildError
from trimtab.embedded.kube.assets import ControlPlaneAssets, control_plane_assets, control_plane_built

_TO_BUILD = "TESTS_BUILD_CONTROL_PLANE"
"""Set by the process that was called, so that all that run tests side by side agree on their order."""
_FIRST = (None, "gw0")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_TO_BUILD] = "" if control_plane_built() else "yes"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ[_TO_BUILD]:
        items.sort(key=_needs_control_plane)


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = os.environ[_TO_BUILD] and not session.config.option.collectonly
    if wanted and os.environ.get("PYTEST_XDIST_WORKER") in _FIRST and any(map(_needs_control_plane, session.items)):
        subprocess.Popen([sys.executable, "-m", "trimtab.embedded.kube.assets"], stdout=subprocess.DEVNULL)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if os.environ[_TO_BUILD] and _needs_control_plane(item):
        try:
            control_plane_assets()
        except BuildError as error:
            pytest.exit(f"the control plane could not be built: {error}", returncode=pytest.ExitCode.INTERNAL_ERROR)
    return (yield)


def _needs_control_plane(item: pytest.Item) -> bool:
    return "assets" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def assets() -> ControlPlaneAssets:
    """Whoever asks for it needs a control plane."""
    return control_plane_assets()
