"""A cluster may be given up while somebody is using its client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from tests.support.kube.fault_server import fault_server
from tests.support.polling import within
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Unreachable
from trimtab.kube.resources import NODES
from trimtab.kube.watch import watch
from trimtab.operator.remote.transport import RemoteTransport


async def test_who_uses_a_client_that_is_being_closed_finds_the_cluster_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on = asyncio.Event(), asyncio.Event()
    close = aiohttp.ClientSession.close

    async def slowly(session: aiohttp.ClientSession) -> None:
        await close(session)
        closing.set()
        await go_on.wait()

    monkeypatch.setattr(aiohttp.ClientSession, "close", slowly)
    async with fault_server(tmp_path) as (_, access):
        client = KubeClient(access, deadline_s=0.1, transport=RemoteTransport)
        await client.__aenter__()
        end = asyncio.create_task(client.__aexit__())
        await within(closing.wait(), 5.0)
        with pytest.raises(Unreachable, match="given up"):
            await client.delete(NODES, "one")
        async with aclosing(watch(client, NODES, resource_version="1")) as changes:
            with pytest.raises(Unreachable, match="given up"):
                await anext(changes)
        go_on.set()
        await within(end, 5.0)
