"""What leaves the trainer beside the next step."""

from __future__ import annotations

import asyncio
import time

import pytest

from trimtab.fabric.objects.errors import StoreRefused, StoreUnavailable
from trimtab.trainer import persistence
from trimtab.trainer.background import Background
from trimtab.trainer.outbox import Outbox
from trimtab.trainer.persistence import persistently


def test_of_what_waits_only_the_newest_goes_out() -> None:
    sent: list[int] = []
    with Background() as background:
        gate = asyncio.Event()

        async def work(number: int) -> None:
            if number == 0:
                await asyncio.wait_for(gate.wait(), 5.0)
            sent.append(number)

        outbox = Outbox(background)
        for number in range(4):
            outbox.send(work(number))

        async def open_gate() -> None:
            gate.set()

        background.run(open_gate())
        outbox.flush()
    assert sent == [0, 3]


def test_a_failure_is_raised_at_the_next_send_or_flush() -> None:
    async def fail() -> None:
        raise StoreRefused("no")

    with Background() as background:
        outbox = Outbox(background)
        outbox.send(fail())
        with pytest.raises(StoreRefused):
            outbox.flush()


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
