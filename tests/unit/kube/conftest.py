"""A scripted server and a client that talks to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.unit.kube.fault_server import FaultServer, fault_server
from trimtab.fabric.backoff import FullJitter
from trimtab.kube.client import KubeClient

QUICK = FullJitter(base_s=0.001, cap_s=0.01)


@pytest.fixture
async def faults(tmp_path: Path) -> AsyncGenerator[tuple[FaultServer, KubeClient], None]:
    async with (
        fault_server(tmp_path) as (server, access),
        KubeClient(access, deadline_s=60.0, backoff=QUICK) as client,
    ):
        yield server, client
