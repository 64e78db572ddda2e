"""kopf that does not end when it is told to, as it may when a watch is being opened, holds nobody up for long."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import kopf
import pytest

from trimtab.kube.access import ClusterAccess
from trimtab.operator import kopf_shell
from trimtab.operator.kopf_shell import run_kopf


async def test_it_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def stuck(*, stop_flag: asyncio.Event, **_: Any) -> None:
        stop_flag.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    monkeypatch.setattr(kopf, "operator", stuck)
    monkeypatch.setattr(kopf_shell, "_ENDS_WITHIN_S", 0.1)
    access = ClusterAccess(server="https://nowhere.invalid", tls=ssl.create_default_context())
    async with asyncio.timeout(10):
        await run_kopf(access, namespaces=(), wake=lambda kind, key: None, started=lambda: None)
        await ended.wait()
