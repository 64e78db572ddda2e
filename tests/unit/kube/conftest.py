"""A scripted server and a client that talks to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.kube.fault_server import QUICK, FaultServer, fault_server
from trimtab.kube.client import KubeClient


@pytest.fixture
async def faults(tmp_path: Path) -> AsyncGenerator[tuple[FaultServer, KubeClient], None]:
    async with (
        fault_server(tmp_path) as (server, access),
        KubeClient(access, deadline_s=60.0, backoff=QUICK) as client,
    ):
        yield server, client
