"""An API server that is another team's: its answers are bounded in bytes, depth and time, and have the API's types."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.kube.fault_server import (
    QUICK,
    Answer,
    FaultServer,
    answer,
    event,
    fault_server,
    listed,
    pod,
    streamed,
)
from tests.support.polling import eventually
from trimtab.kube.bounded_response import OTHERS_SERVER, UNREADABLE
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError, TooLarge, Unreachable
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, Key
from trimtab.kube.watch import watch

Far = tuple[FaultServer, KubeClient]


@pytest.fixture
async def far(tmp_path: Path) -> AsyncGenerator[Far, None]:
    async with (
        fault_server(tmp_path) as (server, access),
        KubeClient(access, deadline_s=10.0, backoff=QUICK, limits=OTHERS_SERVER) as client,
    ):
        yield server, client


def raw(body: bytes, *, headers: dict[str, str] | None = None, status: int = 200) -> Answer:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers=headers, status=status, content_type="application/json")

    return respond


async def _changes(client: KubeClient, *, idle_s: float = 75.0) -> list[Any]:
    return [change async for change in watch(client, PODS, resource_version="1", namespace="n", idle_s=idle_s)]


@pytest.mark.parametrize("status", [200, 500])
async def test_a_compressed_answer_is_not_unpacked(far: Far, status: int) -> None:
    server, client = far
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(64)), packer.flush()])
    server.script = [raw(bomb, headers={"Content-Encoding": "gzip"}, status=status)]
    async with KubeClient(client.access, deadline_s=0.5, backoff=QUICK, limits=OTHERS_SERVER) as impatient:
        with pytest.raises(KubeError):
            await impatient.create(PODS, {"metadata": {"name": "a"}}, namespace="n")
        assert server.headers[0]["Accept-Encoding"] == "identity"


async def test_a_compressed_stream_is_not_read(far: Far) -> None:
    server, client = far
    server.script = [raw(gzip.compress(event("ADDED", "a", version="2")), headers={"Content-Encoding": "gzip"})]
    with pytest.raises(Unreachable, match="compressed"):
        await _changes(client)


async def test_an_answer_beyond_the_bound_is_refused_and_not_asked_for_again(far: Far) -> None:
    server, client = far
    server.script = [raw(b'{"a": "' + b"x" * (5 << 20) + b'"}')]
    with pytest.raises(TooLarge):
        await client.get(PODS, "a", namespace="n")
    assert len(server.requests) == 1


async def test_large_objects_hide_no_others(far: Far) -> None:
    """A page that is too large is asked for in smaller ones."""
    server, client = far

    async def paged(request: web.Request) -> web.StreamResponse:
        limit, begin = int(request.query["limit"]), int(request.query.get("continue") or 0)
        chosen = [{**pod(f"p{n}", version="1"), "data": {"x": "y" * (1 << 20)}} for n in range(12)][
            begin : begin + limit
        ]
        proceed = str(begin + limit) if begin + limit < 12 else ""
        return web.json_response({"metadata": {"resourceVersion": "9", "continue": proceed}, "items": chosen})

    server.script = [paged] * 40
    found = await client.list(PODS, namespace="n", page=500)
    assert len(found.items) == 12


async def test_a_list_that_never_ends_is_given_up(far: Far) -> None:
    server, client = far
    server.script = [listed("a", version="1", proceed="same")] * 5
    with pytest.raises(Unreachable, match="never ends"):
        await client.list(PODS, namespace="n")


async def test_a_line_of_a_watch_is_bounded(far: Far) -> None:
    server, client = far

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * (1 << 20))

    server.script = [endless]
    async with asyncio.timeout(20):
        with pytest.raises(TooLarge):
            await _changes(client)


async def test_bytes_that_never_become_a_change_are_no_sign_of_life(far: Far) -> None:
    server, client = far

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    server.script = [drip]
    async with asyncio.timeout(20):
        with pytest.raises(Unreachable, match="no whole change"):
            await _changes(client, idle_s=0.5)


def _with(**metadata: Any) -> dict[str, Any]:
    item = pod("a", version="2")
    item["metadata"] |= metadata
    return item


_ODD_OBJECTS: list[Any] = [
    None,
    [],
    "text",
    {},
    {"metadata": []},
    {"metadata": {}},
    _with(name=["a"]),
    _with(name=""),
    _with(uid=None),
    _with(resourceVersion=7),
    _with(resourceVersion="x"),
    _with(labels=["a"]),
    _with(labels={"a": 1}),
    _with(annotations="a"),
    _with(ownerReferences=[{"controller": True}]),
    _with(ownerReferences={"a": "b"}),
    _with(finalizers=[1]),
    _with(deletionTimestamp="soon"),
    _with(creationTimestamp=1),
    {**_with(), "spec": ["a"]},
    {**_with(), "status": "Running"},
]


@pytest.mark.parametrize("odd", _ODD_OBJECTS, ids=lambda odd: json.dumps(odd)[:60])
async def test_what_is_no_object_of_the_api_is_told_by_its_field(far: Far, odd: Any) -> None:
    server, client = far
    body = {"metadata": {"resourceVersion": "2"}, "items": [odd]}
    line = json.dumps({"type": "ADDED", "object": odd}).encode() + b"\n"
    server.script = [answer(odd), answer(body), streamed(line)]
    with pytest.raises(Unreachable):
        await client.create(PODS, {"metadata": {"name": "a"}}, namespace="n")
    async with KubeClient(client.access, deadline_s=0.05, backoff=QUICK, limits=OTHERS_SERVER) as impatient:
        with pytest.raises(Unreachable):
            await impatient.list(PODS, namespace="n")
        with pytest.raises(Unreachable):
            await _changes(impatient)


@pytest.mark.parametrize(
    "odd",
    [
        b"[]",
        b"null",
        b'{"type": ["ADDED"], "object": {}}',
        b'{"type": "MOVED", "object": {}}',
        b'{"type": "ERROR", "object": {"code": "x", "details": [], "message": {}}}',
        b'{"type": "ERROR", "object": []}',
        b'{"type": "BOOKMARK", "object": {"metadata": 1}}',
        b"\xff\xfe",
        b'{"type": "ADDED", "object": "\\ud800"}',
    ],
)
async def test_what_is_no_event_ends_the_stream_in_the_usual_way(far: Far, odd: bytes) -> None:
    server, client = far
    server.script = [streamed(odd + b"\n")]
    with pytest.raises(KubeError):
        await _changes(client)


async def test_errors_are_short_whatever_the_server_says(far: Far) -> None:
    server, client = far
    status = {"message": "x" * 1_000_000, "reason": ["a"], "details": {"retryAfterSeconds": 10**300}}
    server.script = [answer(status, status=403)]
    with pytest.raises(KubeError) as caught:
        await client.create(PODS, {"metadata": {"name": "a"}}, namespace="n")
    assert len(str(caught.value)) < 5000


async def test_an_object_that_is_too_deep_comes_without_its_content_and_hides_no_others(far: Far) -> None:
    server, client = far
    deep = json.dumps(_with()).removesuffix("}") + ', "spec": {"a": ' + "[" * 5000 + "]" * 5000 + "}}"
    others = [json.dumps(pod(name, version="3")) for name in ("b", "c")]
    body = '{"metadata": {"resourceVersion": "3"}, "items": [' + ", ".join([others[0], deep, others[1]]) + "]}"
    line = '{"type": "MODIFIED", "object": ' + deep.replace('"2"', '"4"') + "}\n"
    server.script = [
        raw(body.encode()),
        streamed(line.encode(), event("ADDED", "d", version="5"), until=lambda: asyncio.sleep(60)),
    ]
    reflector = Reflector(client, PODS, namespace="n", backoff=QUICK)
    running = asyncio.create_task(reflector.run())
    try:
        await eventually(lambda: Key("n", "d") in reflector, timeout_s=10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert set(reflector) == {Key("n", name) for name in "abcd"}
    assert "nested deeper" in reflector[Key("n", "a")][UNREADABLE]
    assert reflector[Key("n", "a")]["metadata"]["resourceVersion"] == "4"
    assert UNREADABLE not in reflector[Key("n", "b")]


async def test_deep_text_that_is_no_json_costs_no_more_than_its_length(far: Far) -> None:
    """Quotes that never end must not be tried again at each of them."""
    server, client = far
    server.script = [raw(b"[" * 2000 + b'"' + b'\\"' * 1_000_000)]
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no JSON"):
        await client.create(PODS, {"metadata": {"name": "a"}}, namespace="n")
    assert time.monotonic() - began < 5.0
