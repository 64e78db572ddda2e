"""The store follows the server through ends, breaks and expiries of its watch, and forgets what vanished meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.support.kube.fault_server import (
    QUICK,
    Answer,
    FaultServer,
    event,
    expired,
    failed,
    listed,
    refusal,
    streamed,
)
from tests.support.polling import eventually, patiently
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Forbidden
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, Key

Faults = tuple[FaultServer, KubeClient]


async def forever() -> None:
    await asyncio.sleep(60)


@asynccontextmanager
async def running(reflector: Reflector) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(reflector.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(reflector: Reflector) -> Callable[[], set[str]]:
    return lambda: {key.name for key in reflector}


async def test_it_goes_on_from_where_the_stream_broke(faults: Faults) -> None:
    server, client = faults
    half = event("ADDED", "c", version="4")
    server.script = [
        listed("a", version="2"),
        streamed(event("ADDED", "b", version="3"), half[:20], abort=True),
        streamed(half, event("DELETED", "a", version="5")),
        streamed(until=forever),
    ]
    reflector = Reflector(client, PODS, backoff=QUICK)
    async with running(reflector):
        await eventually(lambda: names(reflector)() == {"b", "c"}, timeout_s=5)
        await eventually(lambda: len(server.requests) == 4, timeout_s=5)
    assert [query.get("resourceVersion") for _, query in server.requests] == [None, "2", "3", "5"]
    assert "managedFields" not in reflector[Key("n", "b")]["metadata"]


async def test_after_an_expiry_what_vanished_is_pruned_and_told(faults: Faults) -> None:
    server, client = faults
    server.script = [
        listed("kept", "vanished", version="2"),
        streamed(expired()),
        listed("kept", "new", version="9"),
        streamed(until=forever),
    ]
    reflector = Reflector(client, PODS, backoff=QUICK)
    seen: list[tuple[str, bool, bool]] = []
    reflector.listen(lambda key, before, after: seen.append((key.name, before is not None, after is not None)))
    async with running(reflector):
        await eventually(lambda: names(reflector)() == {"kept", "new"}, timeout_s=5)
    assert seen == [
        ("kept", False, True),
        ("vanished", False, True),
        ("vanished", True, False),
        ("kept", True, True),
        ("new", False, True),
    ]


async def test_a_bookmark_moves_the_version(faults: Faults) -> None:
    server, client = faults
    server.script = [listed(version="2"), streamed(event("BOOKMARK", "-", version="8")), streamed(until=forever)]
    reflector = Reflector(client, PODS, backoff=QUICK)
    async with running(reflector):
        await eventually(lambda: len(server.requests) == 3, timeout_s=5)
    assert server.requests[-1][1]["resourceVersion"] == "8"
    assert len(reflector) == 0


async def test_a_silent_stream_is_given_up(faults: Faults) -> None:
    server, client = faults
    # A machine that is slow to answer is silent too, so it is told more than once.
    told = [streamed(event("ADDED", "b", version="3"))] * 1000
    server.script = [listed("a", version="2"), streamed(until=forever), *told]
    reflector = Reflector(client, PODS, backoff=QUICK, idle_s=0.2)
    async with running(reflector):
        await eventually(lambda: names(reflector)() == {"a", "b"}, timeout_s=5)


async def test_a_refused_watch_says_why_and_is_tried_again(faults: Faults) -> None:
    server, client = faults
    server.script = [
        refusal(403, "Forbidden"),
        refusal(403, "Forbidden"),
        listed("a", version="2"),
        streamed(until=forever),
    ]
    reflector = Reflector(client, PODS, backoff=QUICK)
    failures = []
    async with running(reflector):
        while not reflector.is_synced:
            failures.append(type(reflector.failure))
            await asyncio.sleep(0)
        await reflector.synced(timeout_s=60)
    assert Forbidden in failures
    assert reflector.failure is None


@pytest.mark.parametrize(
    "answer",
    [
        refusal(410, "Expired"),
        refusal(403, "Forbidden"),
        refusal(500, "InternalError"),
        streamed(failed(500, "InternalError")),
        streamed(b'{"type": "MODI\n'),
    ],
    ids=["410", "403", "500", "error in the stream", "cut line"],
)
async def test_one_bad_answer_to_a_watch_loses_nothing(faults: Faults, answer: Answer) -> None:
    """Whether it goes on or lists again."""
    server, client = faults

    async def handle(request: web.Request) -> web.StreamResponse:
        watches.append("watch" in request.query)
        if watches == [False, True]:
            return await answer(request)
        if watches[-1]:
            return await streamed(event("DELETED", "b", version="9"), until=forever)(request)
        return await listed("a", "b", version="2")(request)

    watches: list[bool] = []
    server.script = [handle] * 20
    reflector = Reflector(client, PODS, backoff=QUICK)
    async with running(reflector):
        await eventually(lambda: sum(watches) > 1 and names(reflector)() == {"a"}, timeout_s=5)


async def test_streams_that_end_at_once_are_not_asked_for_in_a_tight_loop(faults: Faults) -> None:
    server, client = faults
    server.script = [listed("a", version="2"), *[streamed()] * 1000]
    waits: list[int] = []

    def counted(_low: float, _high: float) -> float:
        waits.append(len(server.requests))
        return 0.001

    backoff = type(QUICK)(base_s=1.0, cap_s=1.0, uniform=counted)
    # By its clock no stream lasts, however slow the machine.
    reflector = Reflector(client, PODS, backoff=backoff, clock=lambda: 0.0)
    async with running(reflector):
        await eventually(lambda: len(server.requests) > 10, timeout_s=5)
    assert len(waits) >= len(server.requests) - 3


async def test_large_objects_pass(faults: Faults) -> None:
    server, client = faults
    large = event("ADDED", "a", version="3").replace(
        b'"metadata"', b'"data": {"x": "%s"}, "metadata"' % (b"x" * 2_000_000)
    )
    server.script = [listed(version="2"), streamed(large, until=forever)]
    reflector = Reflector(client, PODS, backoff=QUICK)
    async with running(reflector):
        await eventually(lambda: len(reflector) == 1, timeout_s=5)


async def test_changes_come_once_however_often_something_changed(faults: Faults) -> None:
    server, client = faults
    often = [event("MODIFIED", "a", version=str(version)) for version in range(3, 50)]
    server.script = [listed("a", "b", version="2"), streamed(*often, until=forever)]
    reflector = Reflector(client, PODS, backoff=QUICK)
    changes = reflector.changes()
    async with running(reflector):
        await eventually(
            lambda: reflector.get(Key("n", "a"), {}).get("metadata", {}).get("resourceVersion") == "49", timeout_s=5
        )
        assert {(await changes.next()).name for _ in range(2)} == {"a", "b"}
        async with patiently(5):
            waiting = asyncio.create_task(changes.next())
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
