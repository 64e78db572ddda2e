"""Whoever blocks the event loop is named while it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping, Sequence
from traceback import FrameSummary
from typing import Any

from structlog.testing import capture_logs

from tests.support.polling import eventually
from trimtab.rollout.worker.watchdog import LoopWatchdog


def watch(**fields: Any) -> LoopWatchdog:
    given = {"hung_after_s": 600.0, "hung": lambda calls: None, "blocked": lambda seconds: None}
    return LoopWatchdog(clock=time.monotonic, **{**given, **fields})


async def blocking_workflow(logs: list[MutableMapping[str, Any]]) -> None:
    end = time.monotonic() + 60.0
    time.sleep(1.1)  # noqa: ASYNC251 - what it is about
    while not logs and time.monotonic() < end:
        time.sleep(0.01)  # noqa: ASYNC251


async def test_a_blocked_loop_is_named_with_task_and_place_and_its_time_is_counted() -> None:
    blocked: list[float] = []
    with capture_logs() as logs, watch(limit_s=0.5, blocked=blocked.append):
        await asyncio.create_task(blocking_workflow(logs), name="episode task-1.0")
        # Written by the thread, while nothing else could run.
        (line,) = [line for line in logs if line["event"] == "event_loop_blocked"]
        await eventually(lambda: len(blocked) > 0, timeout_s=10.0)
    assert line["task"] == "episode task-1.0"
    assert "blocking_workflow" in line["where"][-1]
    assert "test_watchdog.py" in line["where"][-1]
    assert blocked[0] >= 1.0


async def test_a_loop_that_turns_is_left_alone() -> None:
    blocked: list[float] = []
    with capture_logs() as logs, watch(limit_s=30.0, blocked=blocked.append):
        await asyncio.sleep(0.6)
    assert (logs, blocked) == ([], [])


async def test_a_loop_that_is_blocked_for_too_long_is_given_up_from_the_side() -> None:
    given_up: list[str] = []

    def hung(calls: Sequence[FrameSummary]) -> None:
        given_up.extend(call.name for call in calls)

    async def hang() -> None:
        end = time.monotonic() + 60.0
        while not given_up and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251

    with watch(limit_s=0.1, hung_after_s=0.3, hung=hung):
        await asyncio.create_task(hang())
    assert "hang" in given_up
