"""Answers become typed errors; reads are tried again, writes never are."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from tests.support.kube.fault_server import QUICK, FaultServer, answer, broken_connection, listed, refusal
from trimtab.kube import errors
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import NODES, PODS

Faults = tuple[FaultServer, KubeClient]


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (400, "BadRequest", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (418, "", errors.ApiError),
    ],
)
async def test_each_refusal_has_its_type(faults: Faults, code: int, reason: str, error: type[errors.ApiError]) -> None:
    server, client = faults
    server.script = [refusal(code, reason)]
    with pytest.raises(error, match="create /api/v1/namespaces/n/pods: scripted") as caught:
        await client.create(PODS, {}, namespace="n")
    assert type(caught.value) is error
    assert (caught.value.code, caught.value.reason) == (code, reason)


async def test_a_read_outlives_broken_connections_and_failing_servers(faults: Faults) -> None:
    server, client = faults
    server.script = [broken_connection(), refusal(500), refusal(503), answer({"kind": "Node"})]
    assert await client.get(NODES, "one") == {"kind": "Node"}


async def test_a_read_waits_as_long_as_the_server_asks(faults: Faults) -> None:
    server, client = faults
    server.script = [refusal(429, headers={"Retry-After": "1"}), answer({"kind": "Node"})]
    began = time.monotonic()
    await client.get(NODES, "one")
    assert time.monotonic() - began >= 1.0


async def test_a_wait_beyond_the_deadline_is_not_begun(faults: Faults) -> None:
    server, client = faults
    server.script = [refusal(429, headers={"Retry-After": "3600"})]
    with pytest.raises(errors.TooManyRequests) as caught:
        await client.get(NODES, "one")
    assert caught.value.retry_after_s == 3600.0


@pytest.mark.parametrize("fault", [broken_connection(), refusal(500), refusal(429)])
async def test_a_write_is_sent_once(faults: Faults, fault: object) -> None:
    server, client = faults
    server.script = [fault, answer({})]  # type: ignore[list-item]
    with pytest.raises(errors.KubeError):
        await client.patch(PODS, "p", {}, namespace="n")
    assert len(server.requests) == 1


async def test_silence_ends_at_the_deadline(faults: Faults) -> None:
    server, client = faults

    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    server.script = [silent]
    async with KubeClient(client.access, deadline_s=0.3, backoff=QUICK) as impatient:
        with pytest.raises(errors.Unreachable, match="within the deadline"):
            await impatient.delete(NODES, "one")


async def test_what_is_no_json_is_unreachable(faults: Faults) -> None:
    server, client = faults

    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>a proxy's login</html>")

    server.script = [page] * 1000
    async with KubeClient(client.access, deadline_s=0.3, backoff=QUICK) as impatient:
        with pytest.raises(errors.Unreachable):
            await impatient.get(NODES, "one")


async def test_pages_make_one_list(faults: Faults) -> None:
    server, client = faults
    server.script = [listed("a", "b", version="7", proceed="more"), listed("c", version="7")]
    found = await client.list(PODS, namespace="n", label_selector="x=y", page=2)
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b", "c"]
    assert found.items[0]["kind"] == "Pod"
    assert [query.get("continue") for _, query in server.requests] == [None, "more"]
    assert {query["labelSelector"] for _, query in server.requests} == {"x=y"}


async def test_pages_that_expire_begin_again_as_one(faults: Faults) -> None:
    server, client = faults
    server.script = [listed("a", version="7", proceed="more"), refusal(410, "Expired"), listed("b", "c", version="9")]
    found = await client.list(PODS, page=1)
    assert [item["metadata"]["name"] for item in found.items] == ["b", "c"]
    assert found.resource_version == "9"
    assert "limit" not in server.requests[-1][1]


async def test_every_request_is_counted_and_carries_the_token(faults: Faults) -> None:
    server, client = faults
    counted: list[tuple[str, str, int]] = []
    server.script = [refusal(404), broken_connection(), answer({})]
    async with KubeClient(client.access, on_request=lambda *seen: counted.append(seen)) as counting:
        with pytest.raises(errors.NotFound):
            await counting.get(PODS, "p", namespace="n")
        with pytest.raises(errors.Unreachable):
            await counting.create(PODS, {}, namespace="n", name="p", subresource="eviction")
        await counting.delete(NODES, "one", uid="u", grace_s=0)
    assert counted == [("get", "pods", 404), ("create", "pods/eviction", 0), ("delete", "nodes", 200)]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-token"}


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".."])
def test_no_name_leaves_its_place(name: str) -> None:
    with pytest.raises(ValueError, match="no path"):
        PODS.path(namespace="n", name=name)
