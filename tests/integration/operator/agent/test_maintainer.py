"""The desk asks beside everything else: one question of a job at a time, every answer told once, no key, no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent.asking import API_KEY, settings
from tests.support.agent.cases import case
from tests.support.agent.messages_server import MessagesServer, Request, follow_formula
from tests.support.polling import eventually
from trimtab.api.scalars import SecretKey
from trimtab.kube.resources import Key
from trimtab.operator.autoscale.agent.answers import Answer, Answered, Unanswered
from trimtab.operator.autoscale.agent.maintainer import AgentDesk, KeyMissing
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder

JOB = Key("n", "job")


class Told:
    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def __call__(self, key: Key, answer: Answer) -> None:
        assert key == JOB
        self.answers.append(answer)


async def _key(namespace: str, secret: SecretKey) -> str:
    if secret.name != "anthropic":
        raise KeyMissing(f"there is no Secret {secret.name} in namespace {namespace}")
    return API_KEY


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def desk(told: Told, tmp_path: Path) -> AsyncIterator[AgentDesk]:
    desk = AgentDesk(read_key=_key, transcripts=TranscriptFolder(tmp_path, newest=5), told=told)
    yield desk
    await desk.close()


async def test_an_answer_is_kept_and_told_once(desk: AgentDesk, told: Told, server: MessagesServer) -> None:
    question = case()
    desk.put(JOB, "uid", question, settings(server.url))
    assert desk.answer("uid") is None
    await eventually(lambda: desk.answer("uid") is not None, timeout_s=60.0)
    answer = desk.answer("uid")
    assert isinstance(answer, Answered)
    assert (answer.question, answer.asked_at) == (question.decision_id, question.at)
    assert told.answers == [answer]
    desk.forget("uid")
    assert desk.answer("uid") is None


async def test_a_second_question_waits_for_the_first_answer(
    desk: AgentDesk, told: Told, server: MessagesServer
) -> None:
    thinking = asyncio.Event()

    async def slow(request: Request) -> object:
        await thinking.wait()
        return follow_formula(request)

    server.script = slow  # type: ignore[assignment]
    desk.put(JOB, "uid", case(), settings(server.url))
    await eventually(lambda: len(server.requests) == 1, timeout_s=60.0)
    desk.put(JOB, "uid", replace(case(), decision_id="another"), settings(server.url))
    thinking.set()
    await eventually(lambda: bool(told.answers), timeout_s=60.0)
    assert [answer.question for answer in told.answers] == [case().decision_id]


async def test_without_a_key_there_is_an_answer_that_says_so(
    desk: AgentDesk, told: Told, server: MessagesServer
) -> None:
    agent = settings(server.url, api_key_secret=SecretKey(name="missing", key="k"))
    desk.put(JOB, "uid", case(), agent)
    await eventually(lambda: bool(told.answers), timeout_s=60.0)
    (answer,) = told.answers
    assert isinstance(answer, Unanswered)
    assert answer.cause == "AgentBadSettings"
    assert "there is no Secret missing" in answer.text
    assert server.requests == []
