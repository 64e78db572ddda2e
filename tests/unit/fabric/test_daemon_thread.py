"""Blocking work in a thread that may be left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.polling import eventually
from trimtab.fabric.daemon_thread import in_daemon_thread


async def test_a_thread_that_is_left_behind_disturbs_nobody() -> None:
    go_on, done = threading.Event(), threading.Event()

    def slow() -> None:
        go_on.wait(10.0)
        done.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_daemon_thread(slow, name="slow")
    go_on.set()
    await eventually(done.is_set, timeout_s=10.0)
    assert await in_daemon_thread(lambda: 2, name="quick") == 2


async def test_a_thread_does_not_keep_the_process_from_ending() -> None:
    assert await in_daemon_thread(lambda: threading.current_thread().daemon, name="quick")


async def test_a_thread_hands_over_what_its_work_raises() -> None:
    with pytest.raises(RuntimeError, match="broken raised StopIteration"):
        await in_daemon_thread(lambda: next(iter(())), name="broken")
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 // 0, name="broken")
