"""Which tests may run side by side: those of a file stay together, as do those that share what is costly to start: a
cluster for a folder, a process from which rollout pods are forked."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_WITH_OPERATOR = {"operator", "remote", "release"}


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.split("::", 1)[0])
        if file.parts[:2] == ("tests", "cluster"):
            # Those with an operator of their own have a control plane of their own; the others share one.
            own = len(file.parts) > 3 and file.parts[2] in _WITH_OPERATOR
            return "/".join(file.parts[: 3 if own else 2])
        return "rollout pods" if file.match("chaos/test_rollout_*.py") else str(file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers:
    return ByServers(config, log)
