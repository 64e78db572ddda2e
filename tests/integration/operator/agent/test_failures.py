"""What can go wrong between us and a model: each way has a name, ends in time, and leaves a transcript."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.asking import API_KEY, LOCAL, Asked, put, settings
from tests.support.agent.cases import case
from tests.support.agent.messages_server import (
    Answer,
    MessagesServer,
    Request,
    call,
    error,
    in_turn,
    message,
    text,
)
from tests.support.polling import eventually
from trimtab.embedded.ports import free_ports
from trimtab.operator.autoscale.agent.conversation import ask
from trimtab.operator.autoscale.agent.endpoint import open_client
from trimtab.operator.autoscale.agent.proposal import Cause, MaintainerFailed, TranscribedProposal

HOLD = call("propose", targets=[], victims=[], reason="All is well.")
NOW = {"retry-after-ms": "1"}


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (message(stop_reason="refusal"), Cause.REFUSED),
        (message(HOLD, stop_reason="refusal"), Cause.REFUSED),
        (message(text("I would rather talk.")), Cause.NO_PROPOSAL),
        (message(stop_reason="tool_use"), Cause.NO_PROPOSAL),
        (message(text("…"), stop_reason="pause_turn"), Cause.NO_PROPOSAL),
        (message(HOLD, stop_reason="max_tokens"), Cause.CUT_OFF),
        (message(stop_reason="model_context_window_exceeded"), Cause.CUT_OFF),
        (message(HOLD, HOLD), Cause.MALFORMED_ANSWER),
        (message({"type": "tool_use", "name": "propose"}), Cause.MALFORMED_ANSWER),
        (message(HOLD, usage={"input_tokens": -5, "output_tokens": 1}), Cause.MALFORMED_ANSWER),
        (message(HOLD, usage={"output_tokens": 1}), Cause.MALFORMED_ANSWER),
        (Answer(body=b"{}"), Cause.MALFORMED_ANSWER),
        (Answer(body=b'{"content": [{"type'), Cause.MALFORMED_ANSWER),
        (Answer(body=b"\xff\xfe"), Cause.MALFORMED_ANSWER),
        (Answer(body=b"[" * 100_000), Cause.MALFORMED_ANSWER),
        (Answer(body=b"<html>503</html>", headers={"content-type": "text/html"}), Cause.MALFORMED_ANSWER),
        (Answer(body=b"x" * (1 << 20), headers=NOW), Cause.CONNECTION),
        (Answer(body=b"\x1f\x8b", headers={"content-encoding": "gzip"}), Cause.MALFORMED_ANSWER),
        (
            Answer(status=400, body=b"\xff", headers={"content-type": "text/plain; charset=undefined"}),
            Cause.REQUEST_REFUSED,
        ),
        (Answer(status=400, body=b"\xff", headers={"content-type": "text/plain; charset=hex"}), Cause.REQUEST_REFUSED),
        (Answer(status=400, body=b"[" * 100_000), Cause.REQUEST_REFUSED),
        (Answer(status=302, body=b"", headers={"location": "javascript:1"}), Cause.REQUEST_REFUSED),
        (error(429, "x", headers={"retry-after": "Fri, 31 Dec 9999999 23:59:59 GMT"}), Cause.RATE_LIMITED),
        (error(400, "invalid_request_error"), Cause.REQUEST_REFUSED),
        (error(404, "not_found_error"), Cause.REQUEST_REFUSED),
        (error(413, "request_too_large"), Cause.REQUEST_REFUSED),
        (error(429, "rate_limit_error", headers=NOW), Cause.RATE_LIMITED),
        (error(500, "api_error", headers=NOW), Cause.SERVER_ERROR),
        (error(529, "overloaded_error", headers=NOW), Cause.SERVER_ERROR),
    ],
)
async def test_no_proposal_comes_of_it(
    server: MessagesServer, asked: Asked, tmp_path: Path, answer: Answer, cause: Cause
) -> None:
    server.script = in_turn([answer])

    with pytest.raises(MaintainerFailed) as failed:
        await asked()

    assert failed.value.cause is cause
    assert failed.value.transcript is not None
    transcript = json.loads((tmp_path / failed.value.transcript).read_text())
    assert transcript["outcome"]["failed"] == cause.value


async def test_a_wrong_key(asked: Asked) -> None:
    with pytest.raises(MaintainerFailed, match="HTTP 401") as failed:
        await asked(api_key="sk-ant-somebody-else")

    assert failed.value.cause is Cause.REQUEST_REFUSED


@pytest.mark.parametrize("passing", [error(429, "rate_limit_error", headers=NOW), error(500, "api_error", headers=NOW)])
async def test_trouble_that_passes_is_sat_out(server: MessagesServer, asked: Asked, passing: Answer) -> None:
    server.script = in_turn([passing, passing, message(HOLD)])

    outcome = await asked()

    assert outcome.proposal.reason == "All is well."
    assert len(server.requests) == 3


async def test_retries_are_bounded(server: MessagesServer, asked: Asked) -> None:
    server.script = in_turn([error(500, "api_error", headers=NOW)])

    with pytest.raises(MaintainerFailed):
        await asked()

    assert len(server.requests) == 3


async def test_a_connection_cut_in_mid_answer(server: MessagesServer, asked: Asked) -> None:
    server.script = in_turn([message(HOLD, cut_at=40), message(HOLD)])
    assert (await asked()).proposal.reason == "All is well."

    server.script = in_turn([message(HOLD, cut_at=40)])
    with pytest.raises(MaintainerFailed) as failed:
        await asked()
    assert failed.value.cause is Cause.CONNECTION


async def test_nobody_listens(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(MaintainerFailed) as failed:
        await put(case(), agent=settings(f"http://127.0.0.1:{port}"), folder=tmp_path)

    assert failed.value.cause is Cause.CONNECTION


@pytest.mark.parametrize(
    "answer",
    [
        message(HOLD, after_s=30.0),
        error(429, "rate_limit_error", headers={"retry-after": "3600"}),
        message(call("read_report"), after_s=0.4),
    ],
    ids=["slow", "asked to come back in an hour", "slow in sum"],
)
async def test_the_deadline_is_that_of_the_decision(server: MessagesServer, asked: Asked, answer: Answer) -> None:
    server.script = in_turn([answer])
    begun = time.monotonic()

    with pytest.raises(MaintainerFailed) as failed:
        await asked(timeout_seconds=1)

    assert failed.value.cause is Cause.DEADLINE
    assert failed.value.transcript is not None
    assert time.monotonic() - begun < 60


async def test_who_cancels_is_obeyed(server: MessagesServer, asked: Asked) -> None:
    server.script = in_turn([message(HOLD, after_s=30.0)])
    task: asyncio.Task[TranscribedProposal] = asyncio.ensure_future(asked())
    await eventually(lambda: bool(server.requests), timeout_s=20)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_redirect_does_not_get_the_key(server: MessagesServer, asked: Asked) -> None:
    async with MessagesServer(api_key=API_KEY).running() as elsewhere:

        def script(_: Request) -> Answer:
            return Answer(status=307, body=b"", headers={"location": f"{elsewhere.url}/v1/messages"})

        server.script = script
        with pytest.raises(MaintainerFailed, match="HTTP 307") as failed:
            await asked()

        assert failed.value.cause is Cause.REQUEST_REFUSED
        assert elsewhere.requests == []


async def test_the_environment_does_not_redirect_the_key(
    server: MessagesServer, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-operator")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "of-the-operator")
    server.script = in_turn([message(HOLD)])

    await asked()

    assert "of-the-operator" not in str(server.requests[0].headers)


@pytest.mark.parametrize(
    "key", ["", " \n", "two\nlines-and-more-of-them", "schlüssel-und-bund", "e", "tooshort", "aaaaaaaaaaaaaaaabbbb"]
)
def test_a_key_that_is_none(key: str) -> None:
    with pytest.raises(MaintainerFailed, match="key 'api-key' of Secret 'anthropic' is not an API key") as failed:
        open_client(settings("http://127.0.0.1:1"), api_key=key, egress=LOCAL)

    assert failed.value.cause is Cause.BAD_SETTINGS


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(MaintainerFailed, match=r"agent.baseUrl is not a URL"):
        open_client(settings("http://[::1/v1"), api_key=API_KEY, egress=LOCAL)


async def test_without_a_transcript_nothing_is_proposed(server: MessagesServer) -> None:
    class Full:
        def keep(self, **_: Any) -> str:
            raise OSError(28, "No space left on device")

    server.script = in_turn([message(HOLD)])
    agent = settings(server.url)
    async with open_client(agent, api_key=API_KEY, egress=LOCAL) as client:
        with pytest.raises(MaintainerFailed) as failed:
            await ask(case(), settings=agent, client=client, transcripts=Full())

    assert failed.value.cause is Cause.TRANSCRIPT
    assert failed.value.transcript is None
