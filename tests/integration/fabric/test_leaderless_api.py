"""While servers of a cluster elect who answers for JetStream, a question is asked again; other errors are told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusUnavailable
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.settings import NatsSettings


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as bus:
        yield bus


# An operation that no server has: what answers is what listens here, in the words of a server.
_OPERATION = "TRIMTAB.ELECTION"


async def _answering(bus: Bus, *codes: int | None) -> list[int]:
    """Each question with the next error, or with none; how often it was asked."""
    asked: list[int] = []

    async def answer(message: Msg) -> None:
        code = codes[min(len(asked), len(codes) - 1)]
        asked.append(len(asked))
        said = {} if code is None else {"error": {"code": 503, "err_code": code, "description": "unavailable"}}
        await bus.post(message.reply, json.dumps(said).encode(), deadline_s=30.0)

    await bus.subscribe(f"$JS.API.{_OPERATION}", cb=answer)
    return asked


async def test_a_question_outlives_an_election(bus: Bus) -> None:
    asked = await _answering(bus, 10008, 10008, None)
    assert await api_call(bus, _OPERATION, deadline_s=30.0) == {}
    assert len(asked) == 3


async def test_what_does_not_pass_is_told_at_once(bus: Bus) -> None:
    asked = await _answering(bus, 10076)
    with pytest.raises(BusUnavailable):
        await api_call(bus, _OPERATION, deadline_s=30.0)
    assert len(asked) == 1
