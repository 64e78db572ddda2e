"""Which tests may run side by side: those of a file stay together, as do those of a folder that share a cluster."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.split("::", 1)[0])
        return str(file.parent if file.parent.parent.name == "cluster" else file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers:
    return ByServers(config, log)
