"""The real SDK, the local Messages API, and one call that puts a case to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.asking import API_KEY, Asked, put, settings
from tests.support.agent.cases import case
from tests.support.agent.messages_server import MessagesServer
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.proposal import TranscribedProposal


@pytest.fixture
async def server() -> AsyncIterator[MessagesServer]:
    async with MessagesServer(api_key=API_KEY).running() as running:
        yield running


@pytest.fixture
def asked(server: MessagesServer, tmp_path: Path) -> Asked:
    async def asked(the_case: Case | None = None, *, api_key: str = API_KEY, **changes: Any) -> TranscribedProposal:
        agent = settings(server.url, **changes)
        return await put(the_case or case(), agent=agent, folder=tmp_path, api_key=api_key)

    return asked
