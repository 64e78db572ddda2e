"""Three tests run side by side. Those of a file stay together, as do those of a folder that share a cluster."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# For torch, here and in every process that tests start: threads that wait for one another crawl on a busy machine, and
# sums depend on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("busy machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy machine")


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.split("::", 1)[0])
        return str(file.parent if file.parent.parent.name == "cluster" else file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers:
    return ByServers(config, log)
