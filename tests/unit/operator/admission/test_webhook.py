"""kopf in its own thread: it is stopped, left behind when it hangs, started again when it fails, and touches nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest

from tests.support.polling import eventually, patiently
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.restarts import RestartPolicy
from trimtab.operator.admission.webhook import run_webhook

Operator = Callable[..., Awaitable[None]]


async def run(monkeypatch: pytest.MonkeyPatch, operator: Operator, told_to_stop: asyncio.Event) -> None:
    monkeypatch.setattr(kopf, "operator", operator)
    async with patiently(10):
        await run_webhook(
            kopf.OperatorRegistry,
            server=kopf.WebhookServer,
            told_to_stop=told_to_stop,
            ends_within_s=0.1,
            restarts=RestartPolicy(backoff=FullJitter(base_s=0.001, cap_s=0.001), stable_s=60.0),
        )


async def test_it_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    told_to_stop, lives = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def obedient(*, stop_flag: asyncio.Event, **_: Any) -> None:
        loop.call_soon_threadsafe(told_to_stop.set)
        await stop_flag.wait()
        lives.append("ended")

    await run(monkeypatch, obedient, told_to_stop)
    await eventually(lambda: lives == ["ended"], timeout_s=10)


async def test_it_is_left_behind_when_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def stuck(**_: Any) -> None:
        loop.call_soon_threadsafe(told_to_stop.set)
        await asyncio.sleep(3600)

    await run(monkeypatch, stuck, told_to_stop)


async def test_one_that_fails_is_started_again_and_its_end_cancels_no_task_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told_to_stop, lives = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def fails_once(*, stop_flag: asyncio.Event, **_: Any) -> None:
        lives.append("life")
        if len(lives) == 1:
            # As kopf does at its end.
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            raise ConnectionError("410")
        loop.call_soon_threadsafe(told_to_stop.set)
        await stop_flag.wait()

    ours = asyncio.create_task(told_to_stop.wait())
    await run(monkeypatch, fails_once, told_to_stop)
    assert lives == ["life", "life"]
    assert await ours
