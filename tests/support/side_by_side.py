"""Which tests may run side by side: those of a file stay together, as do those that share what is costly to start: a
cluster for a folder, a process from which rollout pods are forked."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.split("::", 1)[0])
        if file.parent.parent.name == "cluster":
            return str(file.parent)
        return "rollout pods" if file.match("chaos/test_rollout_*.py") else str(file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers:
    return ByServers(config, log)
