"""One call that puts a case to the local Messages API with the real SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from trimtab.api.autoscaling import Agent
from trimtab.api.scalars import SecretKey
from trimtab.fabric.logs import REDACTOR
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.conversation import ask
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.endpoint import open_client
from trimtab.operator.autoscale.agent.proposal import TranscribedProposal
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder

LOCAL = Egress(allowed=(ip_network("127.0.0.0/8"),))
"""Where the tests' servers are."""
API_KEY = "sk-ant-local-5b1e7c0a9f"


Asked = Callable[..., Awaitable[TranscribedProposal]]


def settings(url: str, **changes: Any) -> Agent:
    values: dict[str, Any] = {
        "model": "claude-local",
        "api_key_secret": SecretKey(name="anthropic", key="api-key"),
        "base_url": url,
        "timeout_seconds": 60,
    }
    return Agent(**values | changes)


async def put(case: Case, *, agent: Agent, folder: Path, api_key: str = API_KEY) -> TranscribedProposal:
    with REDACTOR.within([api_key]):
        async with open_client(agent, api_key=api_key, egress=LOCAL) as client:
            return await ask(case, settings=agent, client=client, transcripts=TranscriptFolder(folder, newest=5))
