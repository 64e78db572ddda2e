"""Request and reply: an answer or a typed error, always inside the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout, NoResponders, RemoteError
from trimtab.fabric.bus.requests import Reply, Request, request, serve
from trimtab.fabric.settings import NatsSettings


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


async def test_an_answer_with_headers(bus: Bus) -> None:
    async def echo(asked: Request) -> Reply:
        return Reply(payload=asked.payload[::-1], headers={"Was": asked.headers["Name"]})

    async with await serve(bus, "req.echo", echo, queue_group="g", concurrency=2, handler_deadline_s=60.0):
        reply = await request(bus, "req.echo", b"abc", headers={"Name": "é"})
    assert (reply.payload, reply.headers) == (b"cba", {"Was": "é"})


async def test_nobody_there(bus: Bus) -> None:
    started = time.monotonic()
    with pytest.raises(NoResponders, match=r"req\.nobody"):
        await request(bus, "req.nobody", b"", deadline_s=60.0)
    assert time.monotonic() - started < 60.0


async def test_the_requester_times_out(bus: Bus) -> None:
    async def sleepy(_: Request) -> Reply:
        await asyncio.sleep(30)
        return Reply(b"")

    async with await serve(bus, "req.slow", sleepy, queue_group="g", concurrency=1, handler_deadline_s=0.8):
        with pytest.raises(BusTimeout, match=r"req\.slow"):
            await request(bus, "req.slow", b"", deadline_s=0.1)
        with pytest.raises(RemoteError) as late:
            await request(bus, "req.slow", b"", deadline_s=60.0)
        assert (late.value.kind, late.value.retryable) == ("deadline", True)


async def test_failures_come_back_typed_and_without_unforeseen_text(bus: Bus) -> None:
    async def fail(asked: Request) -> Reply:
        if asked.payload == b"expected":
            raise RemoteError("step 7 is\nover", kind="stale-step", retryable=True)
        if asked.payload == b"huge":
            return Reply(payload=b"x" * (bus.max_payload + 1))
        raise ValueError("hunter2")

    async with await serve(bus, "req.fail", fail, queue_group="g", concurrency=1, handler_deadline_s=60.0):
        with pytest.raises(RemoteError, match="step 7 is over") as expected:
            await request(bus, "req.fail", b"expected", deadline_s=60.0)
        assert (expected.value.kind, expected.value.retryable) == ("stale-step", True)
        with pytest.raises(RemoteError, match="ValueError") as unforeseen:
            await request(bus, "req.fail", b"", deadline_s=60.0)
        assert unforeseen.value.kind == "internal"
        assert "hunter2" not in str(unforeseen.value)
        with pytest.raises(RemoteError) as huge:
            await request(bus, "req.fail", b"huge", deadline_s=60.0)
        assert huge.value.kind == "reply-too-large"


async def test_concurrency_is_bounded_and_the_overflow_told_so(bus: Bus) -> None:
    running = peak = 0
    release = asyncio.Event()

    async def count(_: Request) -> Reply:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await release.wait()
        running -= 1
        return Reply(b"done")

    responder = await serve(bus, "req.count", count, queue_group="g", concurrency=2, backlog=3, handler_deadline_s=60.0)
    async with responder:
        asked = [asyncio.create_task(request(bus, "req.count", b"", deadline_s=60.0)) for _ in range(9)]
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 4:
            refused = {task for task in asked if task.done()}
            await asyncio.sleep(0.01)
        release.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert peak == 2
    assert sum(isinstance(outcome, Reply) for outcome in outcomes) == 5
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, RemoteError)} == {"overloaded"}


async def test_a_queue_group_shares_the_work(bus: Bus) -> None:
    async def who(name: bytes) -> Reply:
        return Reply(name)

    async with (
        await serve(bus, "req.who", lambda _: who(b"a"), queue_group="g", concurrency=1, handler_deadline_s=60.0),
        await serve(bus, "req.who", lambda _: who(b"b"), queue_group="g", concurrency=1, handler_deadline_s=60.0),
    ):
        answers = {(await request(bus, "req.who", b"", deadline_s=60.0)).payload for _ in range(40)}
    assert answers == {b"a", b"b"}


async def test_closing_lets_running_handlers_answer(bus: Bus) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def handler(_: Request) -> Reply:
        entered.set()
        await release.wait()
        return Reply(b"in time")

    responder = await serve(bus, "req.close", handler, queue_group="g", concurrency=1, handler_deadline_s=60.0)
    asked = asyncio.create_task(request(bus, "req.close", b"", deadline_s=60.0))
    await entered.wait()
    closing = asyncio.create_task(responder.close())
    release.set()
    await closing
    assert (await asked).payload == b"in time"
