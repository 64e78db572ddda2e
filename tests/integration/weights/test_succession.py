"""Trainers come and go: they resume, bring other weights, are superseded; no pool ever sees a mixture."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.polling import eventually
from tests.support.weights.states import TrainedState
from tests.support.weights.weight_site import D, WeightSite, content
from trimtab.fabric.objects.errors import StoreTimeout
from trimtab.weights.baseline import LayoutChanged
from trimtab.weights.layout import StateLayout
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.latest import LatestPointer, SupersededTrainer
from trimtab.weights.store.position import Position


async def test_a_trainer_that_resumes_from_a_published_version_ships_nothing_for_it(site: WeightSite) -> None:
    first, puller = await site.publisher(), await site.puller()
    await site.publish(first, 5, 6, 7)
    await puller.pull(deadline_s=D)
    second = await site.publisher()
    pointer = await site.publish(second, 6)
    assert pointer.size_bytes < 1000
    # Version 7 of the first trainer is of a lineage that is no more: its holder goes back over the anchor.
    for version in (6, 7):
        if version == 7:
            await site.publish(second, 7, run=0)
        assert await puller.pull(deadline_s=D) == Position(2, version)
        assert content(puller) == TrainedState(version).file()


async def test_a_trainer_with_other_weights_begins_with_an_anchor(site: WeightSite) -> None:
    puller = await site.puller()
    await site.publish(await site.publisher(), 0, 1)
    await puller.pull(deadline_s=D)
    pointer = await site.publish(await site.publisher(), 0, run=9)
    assert pointer.base_version is None
    await puller.pull(pointer, deadline_s=D)
    assert content(puller) == TrainedState(0, run=9).file()


async def test_another_model_replaces_the_copy(site: WeightSite) -> None:
    puller = await site.puller()
    await site.publish(await site.publisher(), 0)
    await puller.pull(deadline_s=D)
    other = TrainedState(0, layout=StateLayout.of({"w": ("BF16", (10, 10))}))
    publisher = await site.publisher()
    await publisher.publish(0, publisher.capture(other), deadline_s=D)
    await puller.pull(deadline_s=D)
    assert content(puller) == other.file()


async def test_a_model_that_changes_under_a_publisher_is_refused(site: WeightSite) -> None:
    publisher = await site.publisher()
    await site.publish(publisher, 0)
    with pytest.raises(LayoutChanged):
        publisher.capture(TrainedState(1, layout=StateLayout.of({"w": ("BF16", (10, 10))})))


async def test_a_superseded_trainer_can_publish_nothing_more(site: WeightSite) -> None:
    old, puller = await site.publisher(), await site.puller()
    await site.publish(old, 0)
    new = await site.publisher()
    captured = old.capture(TrainedState(1))
    with pytest.raises(SupersededTrainer):
        await old.publish(1, captured, deadline_s=D)
    await site.publish(new, 0, run=3)
    await puller.pull(deadline_s=D)
    assert content(puller) == TrainedState(0, run=3).file()


async def test_two_trainers_at_once_never_interleave(site: WeightSite) -> None:
    """Both publish as fast as they can; what a pool sees at any time is a version of one of them, whole."""
    trainers = [await site.publisher(), await site.publisher()]
    puller = await site.puller()

    async def train(run: int, publisher: WeightPublisher) -> int:
        try:
            for version in range(6):
                captured = await asyncio.to_thread(publisher.capture, TrainedState(version, run))
                await publisher.publish(version, captured, deadline_s=D)
        except SupersededTrainer:
            return version
        return 6

    async def something_is_published() -> bool:
        latest = await LatestPointer(site.store, "p").read(deadline_s=D)
        return latest is not None and latest.newest is not None

    async def follow() -> None:
        while True:
            position = await puller.pull(deadline_s=D)
            assert content(puller) == TrainedState(position.version, position.epoch - 1).file()
            await asyncio.sleep(0.02)

    running = [asyncio.create_task(train(run, publisher)) for run, publisher in enumerate(trainers)]
    await eventually(something_is_published, timeout_s=D)
    following = asyncio.create_task(follow())
    done = await asyncio.gather(*running)
    await eventually(lambda: puller.held == Position(2, 5) or following.done(), timeout_s=D)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert done == [0, 6]


async def test_a_first_version_that_never_got_out_is_passed_over(site: WeightSite) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    captured = publisher.capture(TrainedState(1))
    with pytest.raises(StoreTimeout):
        await publisher.publish(1, captured, deadline_s=0.000001)
    pointer = await publisher.publish(2, publisher.capture(TrainedState(2)), deadline_s=D)
    assert await puller.pull(pointer, deadline_s=D) == Position(1, 2)
    assert content(puller) == TrainedState(2).file()
