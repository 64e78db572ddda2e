"""What leaves the trainer beside the next step."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from tests.support.polling import within
from trimtab.api.pool import JobPool
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.errors import StoreRefused, StoreUnavailable
from trimtab.trainer.background import Background, Outbox, persistently
from trimtab.trainer.publisher import WeightOutbox, codec_for
from trimtab.weights.baseline import WeightSource
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.codec.change import Sparse
from trimtab.weights.layout import StateLayout
from trimtab.weights.publisher import WeightPublisher

QUICK = FullJitter(base_s=0.001, cap_s=0.001)


def poll_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_it_is_busy_until_what_was_sent_is_out() -> None:
    sent: list[int] = []
    with Background() as background:
        gate = asyncio.Event()

        async def work() -> None:
            await within(gate.wait(), 5.0)
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


async def test_a_store_that_comes_back_is_waited_for() -> None:
    attempts: list[float] = []

    async def attempt() -> str:
        attempts.append(time.monotonic())
        if len(attempts) < 4:
            raise StoreUnavailable("away")
        return "written"

    assert await persistently(attempt, what="x", deadline_s=60.0, backoff=QUICK) == "written"
    assert len(attempts) == 4


async def test_past_the_deadline_and_for_refusals_the_error_is_raised() -> None:
    async def away() -> None:
        raise StoreUnavailable("away")

    async def refused() -> None:
        raise StoreRefused("no")

    with pytest.raises(StoreUnavailable):
        await persistently(away, what="x", deadline_s=0.02, backoff=QUICK)
    with pytest.raises(StoreRefused):
        await persistently(refused, what="x", deadline_s=60.0, backoff=QUICK)


class SlowPublisher:
    """Reads when it is told to."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.published: dict[int, list[int]] = {}

    def capture(self, source: list[int]) -> list[int]:
        assert self.may_read.wait(10.0)
        return list(source)

    async def publish(self, version: int, captured: list[int], *, deadline_s: float) -> None:
        self.published[version] = captured


def test_weights_are_read_beside_the_next_step_and_before_its_update() -> None:
    publisher = SlowPublisher()
    weights = [1, 2, 3]
    with Background() as background:
        outbox = WeightOutbox(cast(WeightPublisher, publisher), background)
        outbox.send(7, cast(WeightSource, weights))
        assert outbox.busy, "computing goes on meanwhile"
        threading.Timer(0.05, publisher.may_read.set).start()
        outbox.wait_until_read()
        weights[0] = 9
        outbox.flush()
        outbox.wait_until_read()
    assert publisher.published == {7: [1, 2, 3]}


class KnownChanges:
    """What changed is known: nothing of the weights has to be read."""

    layout = StateLayout.of({"a": ("BF16", (3,))})

    def by_block(self) -> dict[int, Sparse]:
        return {}

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))


def test_an_update_does_not_wait_where_it_is_known_what_changed() -> None:
    publisher = SlowPublisher()
    with Background() as background:
        outbox = WeightOutbox(cast(WeightPublisher, publisher), background)
        outbox.send(7, KnownChanges())
        outbox.wait_until_read()
        assert outbox.busy, "nothing is published yet"
        publisher.may_read.set()
        outbox.flush()
    assert publisher.published == {7: [1, 2]}


async def test_trainers_whose_store_was_away_do_not_write_all_at_once() -> None:
    asked: list[float] = []

    def drawn(low: float, high: float) -> float:
        asked.append(high)
        return low

    async def attempt() -> str:
        if len(asked) < 5:
            raise StoreUnavailable("away")
        return "written"

    backoff = FullJitter(base_s=1.0, cap_s=4.0, uniform=drawn)
    assert await persistently(attempt, what="x", deadline_s=60.0, backoff=backoff) == "written"
    assert asked == [1.0, 2.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("wanted", "clusters", "codec"),
    [
        ("auto", [None], Codec.FAST),
        ("auto", [None, "elsewhere"], Codec.AUTO),
        ("compact", [None], Codec.COMPACT),
        ("fast", ["elsewhere"], Codec.FAST),
    ],
)
def test_deltas_that_stay_in_the_cluster_are_coded_for_speed(
    wanted: str, clusters: list[str | None], codec: Codec
) -> None:
    pools = [
        JobPool.model_validate(
            {"name": f"p{number}"}
            | ({} if where is None else {"cluster": {"kubeconfigSecret": {"name": where, "key": "kubeconfig"}}})
        )
        for number, where in enumerate(clusters)
    ]
    assert codec_for(wanted, pools) is codec
