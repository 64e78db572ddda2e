"""Agents of several namespaces side by side: what one names as its endpoint or key costs the others nothing."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent.asking import API_KEY, LOCAL, put, settings
from tests.support.agent.cases import case
from tests.support.agent.messages_server import MessagesServer, Request, follow_formula
from tests.support.polling import eventually
from trimtab.api.scalars import SecretKey
from trimtab.fabric.logs import REDACTOR, configure_logs
from trimtab.fabric.settings import LogSettings
from trimtab.kube.resources import Key
from trimtab.operator.autoscale.agent.conversation import ask
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.endpoint import open_client
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers
from trimtab.operator.autoscale.agent.proposal import AgentReply, Cause, MaintainerFailed, Proposed
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder


async def _key(namespace: str, secret: SecretKey) -> str:
    return API_KEY


@pytest.fixture
async def maintainers(tmp_path: Path) -> AsyncIterator[AgentMaintainers]:
    def ignore(key: Key, reply: AgentReply) -> None:
        return

    made = AgentMaintainers(
        read_key=_key, transcripts=TranscriptFolder(tmp_path, newest=5), on_reply=ignore, egress=LOCAL
    )
    yield made
    await made.close()


async def test_endpoints_that_hang_hold_up_their_own_namespace(
    maintainers: AgentMaintainers, server: MessagesServer
) -> None:
    hanging = asyncio.Event()
    asked: list[str] = []

    async def slow(request: Request) -> object:
        model = str(request.body["model"])
        asked.append(model)
        if model == "hangs":
            await hanging.wait()
        return follow_formula(request)

    server.script = slow  # type: ignore[assignment]
    for number in range(20):
        hostile = replace(case(), namespace="hostile", job=f"j{number}")
        maintainers.ask(Key("hostile", f"j{number}"), f"h{number}", hostile, settings(server.url, model="hangs"))
    await eventually(lambda: asked.count("hangs") == 2, timeout_s=60.0)
    maintainers.ask(Key("good", "job"), "good", replace(case(), namespace="good"), settings(server.url))
    await eventually(lambda: isinstance(maintainers.reply("good"), Proposed), timeout_s=60.0)
    assert asked.count("hangs") == 2
    hanging.set()
    await eventually(lambda: all(maintainers.reply(f"h{number}") for number in range(20)), timeout_s=120.0)


async def test_an_inner_address_is_refused_and_nothing_is_sent(server: MessagesServer, tmp_path: Path) -> None:
    agent = settings(server.url)
    async with open_client(agent, api_key=API_KEY, egress=Egress()) as client:
        with pytest.raises(MaintainerFailed) as failed:
            await ask(case(), settings=agent, client=client, transcripts=TranscriptFolder(tmp_path, newest=5))
    assert failed.value.cause is Cause.BAD_SETTINGS
    assert "operator.agentEgress.allowedCidrs" in str(failed.value)
    assert server.requests == []


async def test_a_name_is_dialled_at_the_address_that_was_judged(server: MessagesServer, tmp_path: Path) -> None:
    """Not resolved a second time: nothing but the judge knows this name."""
    port = int(server.url.rpartition(":")[2])
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, at: int) -> list[str]:
        asked.append((host, at))
        return ["127.0.0.1"]

    agent = settings(f"http://model.invalid:{port}")
    egress = Egress(allowed=LOCAL.allowed, resolve=resolve)
    async with open_client(agent, api_key=API_KEY, egress=egress) as client:
        await ask(case(), settings=agent, client=client, transcripts=TranscriptFolder(tmp_path, newest=5))
    assert set(asked) == {("model.invalid", port)}
    assert {request.headers["Host"] for request in server.requests} == {f"model.invalid:{port}"}


async def test_a_key_is_taken_out_of_what_its_own_task_says_only(server: MessagesServer, tmp_path: Path) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    logs = io.StringIO()
    configure_logs(LogSettings(level="info"), stream=logs)
    key = "reconcile_failed"
    server.api_key = key
    try:
        await put(case(), agent=settings(server.url), folder=tmp_path, api_key=key)
        with REDACTOR.within([key]):
            logging.getLogger("own").warning("saying %s", key)
        logging.getLogger("another").warning("reconcile_failed of another tenant")
    finally:
        root.handlers[:], root.level = before
        logging.captureWarnings(capture=False)
    assert "saying ***" in logs.getvalue()
    assert "reconcile_failed of another tenant" in logs.getvalue()
