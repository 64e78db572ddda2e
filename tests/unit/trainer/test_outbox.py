"""What leaves the trainer beside the next step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from trimtab.fabric.objects.errors import StoreRefused, StoreUnavailable
from trimtab.trainer import persistence
from trimtab.trainer.background import Background
from trimtab.trainer.outbox import Outbox
from trimtab.trainer.persistence import persistently


def poll_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_it_is_busy_until_what_was_sent_is_out() -> None:
    sent: list[int] = []
    with Background() as background:
        gate = asyncio.Event()

        async def work() -> None:
            await asyncio.wait_for(gate.wait(), 5.0)
            sent.append(1)

        async def open_gate() -> None:
            gate.set()

        outbox = Outbox(background)
        assert not outbox.busy
        outbox.send(work())
        assert outbox.busy
        background.run(open_gate())
        outbox.flush()
        assert not outbox.busy
    assert sent == [1]


def test_a_failure_is_raised_to_whoever_looks_next() -> None:
    async def fail() -> None:
        raise StoreRefused("no")

    with Background() as background:
        outbox = Outbox(background)
        outbox.send(fail())
        with pytest.raises(StoreRefused):
            outbox.flush()
        outbox.send(fail())
        with pytest.raises(StoreRefused):
            poll_until(lambda: not outbox.busy)


async def test_a_store_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "_DELAY_FIRST_S", 0.001)
    attempts: list[float] = []

    async def attempt() -> str:
        attempts.append(time.monotonic())
        if len(attempts) < 4:
            raise StoreUnavailable("away")
        return "written"

    assert await persistently(attempt, what="x", deadline_s=5.0) == "written"
    assert len(attempts) == 4


async def test_past_the_deadline_and_for_refusals_the_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "_DELAY_FIRST_S", 0.001)

    async def away() -> None:
        raise StoreUnavailable("away")

    async def refused() -> None:
        raise StoreRefused("no")

    with pytest.raises(StoreUnavailable):
        await persistently(away, what="x", deadline_s=0.02)
    with pytest.raises(StoreRefused):
        await persistently(refused, what="x", deadline_s=60.0)
