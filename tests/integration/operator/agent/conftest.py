"""The real SDK, the local Messages API, and one call that puts a case to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.operator.agent.messages_server import MessagesServer
from tests.unit.operator.autoscale.agent.cases import case
from trimtab.api.autoscaling import Agent
from trimtab.api.scalars import SecretKey
from trimtab.operator.autoscale.agent.ask import ask
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.endpoint import open_client
from trimtab.operator.autoscale.agent.proposal import Outcome
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder

API_KEY = "sk-ant-local-5b1e7c0a9f"

Asked = Callable[..., Awaitable[Outcome]]


def settings(url: str, **changes: Any) -> Agent:
    values: dict[str, Any] = {
        "model": "claude-local",
        "api_key_secret": SecretKey(name="anthropic", key="api-key"),
        "base_url": url,
        "timeout_seconds": 60,
    }
    return Agent(**values | changes)


async def put(case: Case, *, agent: Agent, folder: Path, api_key: str = API_KEY) -> Outcome:
    async with open_client(agent, api_key=api_key) as client:
        return await ask(case, settings=agent, client=client, transcripts=TranscriptFolder(folder, newest=5))


@pytest.fixture
async def server() -> AsyncIterator[MessagesServer]:
    async with MessagesServer(api_key=API_KEY).running() as running:
        yield running


@pytest.fixture
def asked(server: MessagesServer, tmp_path: Path) -> Asked:
    async def asked(the_case: Case | None = None, *, api_key: str = API_KEY, **changes: Any) -> Outcome:
        agent = settings(server.url, **changes)
        return await put(the_case or case(), agent=agent, folder=tmp_path, api_key=api_key)

    return asked
