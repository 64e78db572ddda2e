"""Several ranks publish one policy: each stores its blocks, one signs, and pools see what one publisher would give."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from tests.support.polling import within
from tests.support.weights.circle import Circle, Seat, ShareOfState
from tests.support.weights.states import TrainedState
from tests.support.weights.weight_site import RULES, SIGNER, D, WeightSite, content
from trimtab.fabric.objects.errors import StoreTimeout
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.latest import Latest, SupersededTrainer
from trimtab.weights.store.position import Position
from trimtab.weights.upkeep import UpkeepRules

OFTEN = replace(RULES, anchor_every=3, fold_every=2)


class Ranks:
    """One publisher for each rank of a trainer."""

    def __init__(self, seats: list[Seat], publishers: list[WeightPublisher]) -> None:
        self.publishers = publishers
        self._seats = seats

    @classmethod
    async def open(cls, site: WeightSite, count: int, *, rules: UpkeepRules = RULES) -> Ranks:
        circle = Circle(count)
        seats = [circle.seat(rank) for rank in range(count)]
        publishers = await asyncio.gather(
            *(
                WeightPublisher.open(
                    site.store, site.pointers, job="j", policy="p", signer=SIGNER, rules=rules, clock=lambda: 1.0,
                    folder=site.folder / uuid.uuid4().hex, deadline_s=D, group=seat,
                )
                for seat in seats
            )
        )  # fmt: skip
        for publisher in publishers:
            site.closing.push_async_callback(publisher.close)
        return cls(seats, publishers)

    async def publish(self, version: int, *, run: int = 0, failing: int | None = None) -> list[WeightPointer]:
        """`failing` has no time for its first attempt."""

        async def one(rank: int) -> WeightPointer:
            publisher = self.publishers[rank]
            share = ShareOfState(TrainedState(version, run), rank, len(self.publishers))
            captured = await asyncio.to_thread(publisher.capture, share)
            if rank == failing:
                with pytest.raises(StoreTimeout):
                    await publisher.publish(version, captured, deadline_s=0.0)
            return await publisher.publish(version, captured, deadline_s=D)

        return list(await within(asyncio.gather(*map(one, range(len(self.publishers)))), D))

    async def flush(self) -> None:
        for publisher in self.publishers:
            await publisher.flush()


async def roots(site: WeightSite) -> dict[int, set[str]]:
    """Of each version, whichever trainer has published it."""
    found: dict[int, set[str]] = {}
    for entry in (await site.latest()).catalogue:
        found.setdefault(entry.target.version, set()).add(entry.root)
    return found


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
async def test_pools_see_what_one_publisher_would_have_given_them(site: WeightSite, count: int) -> None:
    """With four ranks one of them owns no block."""
    ranks, puller = await Ranks.open(site, count, rules=OFTEN), await site.puller()
    for version in range(8):
        pointers = await ranks.publish(version)
        assert all(pointer == pointers[0] for pointer in pointers), "all ranks know what was signed"
        assert await puller.pull(await site.announced(), deadline_s=D) == Position(1, version)
        assert content(puller) == TrainedState(version).file()
        # What ranks have stored beside it is told with the next version.
        await ranks.flush()

    def has_upkeep(latest: Latest) -> bool:
        """An anchor beside the first version, and a delta over several."""
        hops = [entry.target.version - entry.base.version for entry in latest.catalogue if entry.base is not None]
        return max(hops) > 1 and sum(entry.base is None for entry in latest.catalogue) > 1

    assert has_upkeep(await site.latest())
    joiner = await site.puller("joiner")
    assert await joiner.pull(deadline_s=D) == Position(1, 7)
    assert content(joiner) == TrainedState(7).file()
    together = await roots(site)
    alone = await site.publisher()
    await site.publish(alone, *range(8))
    assert await roots(site) == together, "a version has the same digest, whoever has published it"


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_rank_that_has_to_try_again_keeps_the_others_waiting_and_nothing_else(
    site: WeightSite, failing: int
) -> None:
    ranks, puller = await Ranks.open(site, 2), await site.puller()
    for version in range(3):
        await ranks.publish(version, failing=failing)
    assert await puller.pull(deadline_s=D) == Position(1, 2)
    assert content(puller) == TrainedState(2).file()


async def test_ranks_that_resume_from_a_published_version_ship_nothing_for_it(site: WeightSite) -> None:
    first = await Ranks.open(site, 4)
    await first.publish(0)
    await first.publish(1)
    before = await site.sizes("obj")
    second = await Ranks.open(site, 2)
    (pointer, _) = await second.publish(1)
    assert pointer.epoch == 2
    assert await site.sizes("obj") == before
    await second.publish(2)
    puller = await site.puller()
    assert await puller.pull(deadline_s=D) == Position(2, 2)
    assert content(puller) == TrainedState(2).file()


async def test_ranks_that_were_superseded_publish_nothing_any_more(site: WeightSite) -> None:
    old = await Ranks.open(site, 2)
    await old.publish(0)
    new = await Ranks.open(site, 2)
    with pytest.raises(SupersededTrainer):
        await old.publish(1)
    await new.publish(0)
    assert (await site.latest()).newest == Position(2, 0)
