"""Agents are asked beside everything else: one question of a job at a time, every reply told once, without a key no
proposal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent.asking import API_KEY, LOCAL, settings
from tests.support.agent.cases import case
from tests.support.agent.messages_server import MessagesServer, Request, follow_formula
from tests.support.polling import eventually
from trimtab.api.scalars import SecretKey
from trimtab.kube.resources import Key
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers, KeyMissing
from trimtab.operator.autoscale.agent.proposal import AgentReply, NotProposed, Proposed
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder

JOB = Key("n", "job")


class Told:
    def __init__(self) -> None:
        self.replies: list[AgentReply] = []

    def __call__(self, key: Key, reply: AgentReply) -> None:
        assert key == JOB
        self.replies.append(reply)


async def _key(namespace: str, secret: SecretKey) -> str:
    if secret.name != "anthropic":
        raise KeyMissing(f"there is no Secret {secret.name} in namespace {namespace}")
    return API_KEY


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def maintainers(told: Told, tmp_path: Path) -> AsyncIterator[AgentMaintainers]:
    maintainers = AgentMaintainers(
        read_key=_key, transcripts=TranscriptFolder(tmp_path, newest=5), on_reply=told, egress=LOCAL
    )
    yield maintainers
    await maintainers.close()


async def test_a_reply_is_kept_and_told_once(maintainers: AgentMaintainers, told: Told, server: MessagesServer) -> None:
    question = case()
    maintainers.ask(JOB, "uid", question, settings(server.url))
    assert maintainers.reply("uid") is None
    await eventually(lambda: maintainers.reply("uid") is not None, timeout_s=60.0)
    reply = maintainers.reply("uid")
    assert isinstance(reply, Proposed)
    assert (reply.question, reply.asked_at) == (question.decision_id, question.at)
    assert told.replies == [reply]
    maintainers.forget("uid")
    assert maintainers.reply("uid") is None


async def test_a_second_question_waits_for_the_first_reply(
    maintainers: AgentMaintainers, told: Told, server: MessagesServer
) -> None:
    thinking = asyncio.Event()

    async def slow(request: Request) -> object:
        await thinking.wait()
        return follow_formula(request)

    server.script = slow  # type: ignore[assignment]
    maintainers.ask(JOB, "uid", case(), settings(server.url))
    await eventually(lambda: len(server.requests) == 1, timeout_s=60.0)
    maintainers.ask(JOB, "uid", replace(case(), decision_id="another"), settings(server.url))
    thinking.set()
    await eventually(lambda: bool(told.replies), timeout_s=60.0)
    assert [reply.question for reply in told.replies] == [case().decision_id]


async def test_without_a_key_there_is_a_reply_that_says_so(
    maintainers: AgentMaintainers, told: Told, server: MessagesServer
) -> None:
    agent = settings(server.url, api_key_secret=SecretKey(name="missing", key="k"))
    maintainers.ask(JOB, "uid", case(), agent)
    await eventually(lambda: bool(told.replies), timeout_s=60.0)
    (reply,) = told.replies
    assert isinstance(reply, NotProposed)
    assert reply.cause == "AgentBadSettings"
    assert "there is no Secret missing" in reply.text
    assert server.requests == []
