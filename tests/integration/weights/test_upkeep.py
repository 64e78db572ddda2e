"""Anchors, folds, leases and collection beside the versions of a running publisher."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.weights.states import TrainedState
from tests.support.weights.weight_site import RULES, D, WeightSite, content
from trimtab.fabric.bus.errors import BusError, BusTimeout
from trimtab.fabric.objects.client import DEFAULT_DEADLINE_S, ObjectStore, StoredObject
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.best_versions import BestVersion, BestVersions
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.kept import KeptVersions
from trimtab.weights.store.keys import ChunkName, parse_key
from trimtab.weights.store.leases import Lease, read_leases
from trimtab.weights.store.position import Position
from trimtab.weights.upkeep import UpkeepRules


async def test_folds_and_anchors_shorten_the_way(site: WeightSite) -> None:
    rules = UpkeepRules(anchor_every=6, fold_every=4, collection=RULES.collection)
    publisher, away = await site.publisher(rules=rules), await site.puller("away")
    await site.publish(publisher, 0)
    await away.pull(deadline_s=D)
    for version in range(1, 9):
        await site.publish(publisher, version)
        await publisher.flush()
    entries = (await site.latest()).catalogue
    edges = {(entry.base and entry.base.version, entry.target.version) for entry in entries}
    assert {(None, 0), (None, 6), (0, 4), (4, 8)} <= edges
    folded = next(entry.bytes for entry in entries if entry.base == Position(1, 0) and entry.target.version == 4)
    singles = sum(
        e.bytes for e in entries if e.base and e.target.version <= 4 and e.base.version == e.target.version - 1
    )
    assert folded < singles
    seen: list[tuple[int, int]] = []
    await away.pull(deadline_s=D, progress=lambda done, total: seen.append((done, total)))
    assert content(away) == TrainedState(8).file()
    manifests = sum((await site.sizes("fold")).values())
    both = sum(e.bytes for e in entries if e.base and (e.base.version, e.target.version) in {(0, 4), (4, 8)})
    assert seen[-1] == (both - manifests, both - manifests)
    joiner = await site.puller("joiner")
    await joiner.pull(deadline_s=D)
    assert content(joiner) == TrainedState(8).file()


async def test_old_versions_go_when_nobody_holds_them(site: WeightSite) -> None:
    rules = UpkeepRules(
        anchor_every=3,
        fold_every=None,
        collection=CollectionRules(keep_versions=2, lease_ttl_s=600.0, grace_s=0.0),
        collect_every_s=0.0,
    )
    publisher = await site.publisher(rules=rules)
    away, gone = await site.puller("away"), await site.puller("gone")
    await site.publish(publisher, 0, 1)
    await away.pull(deadline_s=D)
    await gone.pull(deadline_s=D)
    await gone.give_up_lease(deadline_s=D)

    async def publish_and_collect(*versions: int) -> set[int]:
        for version in versions:
            await site.publish(publisher, version)
            await publisher.flush()
        return {entry.target.version for entry in (await site.latest()).catalogue}

    assert await publish_and_collect(*range(2, 9)) >= {2, 3, 4, 5, 6, 7, 8}  # all that leads on from version 1
    assert await away.pull(deadline_s=D) == Position(1, 8)
    kept = await publish_and_collect(9, 10, 11)
    assert kept == {8, 9, 10, 11} or kept == {9, 10, 11}  # the anchor of 9, and what leads on from 8
    objects = await site.sizes("obj")
    referenced = {entry.target.version for entry in (await site.latest()).catalogue}
    assert len(objects) <= len(referenced) + 2
    for puller in (away, gone, await site.puller("joiner")):
        assert await puller.pull(deadline_s=D) == Position(1, 11)
        assert content(puller) == TrainedState(11).file()


@pytest.mark.slow
async def test_the_best_version_stays_and_so_does_what_is_being_evaluated(site: WeightSite) -> None:
    rules = UpkeepRules(
        anchor_every=3,
        fold_every=None,
        collection=CollectionRules(keep_versions=2, lease_ttl_s=600.0, grace_s=0.0),
        collect_every_s=0.0,
    )
    said: BestVersions | BusError = BestVersions(policy="p")

    async def ask_best() -> BestVersions:
        if isinstance(said, BusError):
            raise said
        return said

    publisher = await site.publisher(rules=rules, ask_best=ask_best)

    async def published(*versions: int) -> set[int]:
        for version in versions:
            await site.publish(publisher, version)
            await publisher.flush()
        return {entry.target.version for entry in (await site.latest()).catalogue}

    await published(0, 1)
    said = BestVersions(policy="p", best=(best_version(1, 0.5),), evaluating=4)
    assert {1, 4} <= await published(*range(2, 12))
    said = BestVersions(policy="p", best=(best_version(4, 0.6),))
    there = await published(12, 13, 14)
    assert 4 in there
    assert 1 not in there, "another one is better"
    said = BusTimeout("nobody answers")
    assert await published(15, 16, 17, 18, 19) >= there, "what is the best is not known: nothing goes"
    said = BestVersions(policy="p", best=(best_version(19, 0.7),))
    await publisher.finish()
    kept = await KeptVersions(site.store, "p").read(deadline_s=D)
    assert kept.positions == {Position(1, 19)}, "the last evaluation is over, and no version comes after it"


@pytest.mark.slow
async def test_a_run_whose_every_version_is_a_copy_keeps_a_few_of_them(site: WeightSite) -> None:
    """As where all weights move in every step, and are published as they are computed."""
    rules = UpkeepRules(
        anchor_every=100,
        anchor_after_copies=2,
        fold_every=None,
        collection=CollectionRules(keep_versions=200, lease_ttl_s=600.0, grace_s=0.0, copies=4),
        collect_every_s=0.0,
    )
    publisher = await site.publisher(rules=rules)
    for version in range(16):
        captured = publisher.capture(TrainedState(version, run=version))
        await publisher.publish(version, captured, deadline_s=D)
        await publisher.flush()
    catalogue = (await site.latest()).catalogue
    copy = max(entry.bytes for entry in catalogue if entry.base is None)
    assert all(entry.bytes <= 1.01 * copy for entry in catalogue), "no delta is larger than a copy"
    assert sum(entry.bytes for entry in catalogue) <= 8 * copy, "those that are kept, and the way in to the oldest"
    assert sum((await site.sizes("obj")).values()) <= 9 * copy
    joiner = await site.puller("joiner")
    assert await joiner.pull(deadline_s=D) == Position(1, 15)


def best_version(version: int, score: float) -> BestVersion:
    return BestVersion(benchmark="b", version=version, score=score)


async def test_upkeep_that_fails_does_not_stop_the_versions(site: WeightSite) -> None:
    rules = UpkeepRules(anchor_every=1, fold_every=2, collection=RULES.collection)
    scratch, away = site.folder / "scratch", site.folder / "away"
    publisher, puller = await site.publisher(rules=rules, scratch=scratch), await site.puller()
    await site.publish(publisher, 0)
    scratch.rename(away)
    await site.publish(publisher, 1, 2, 3)
    await publisher.flush()
    entries = (await site.latest()).catalogue
    assert [(e.base.version if e.base else None, e.target.version) for e in entries] == [
        (None, 0),
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    away.rename(scratch)
    await site.publish(publisher, 4, 5, 6, 7)
    await publisher.flush()
    edges = {(e.base.version if e.base else None, e.target.version) for e in (await site.latest()).catalogue}
    assert (None, 4) in edges
    assert any(base is not None and target - base > 1 for base, target in edges)
    await puller.pull(deadline_s=D)
    assert content(puller) == TrainedState(7).file()


class WatchedStore(ObjectStore):
    """Lets the test look before a chunk is read."""

    def __init__(self, settings: ObjectStoreSettings, look: Callable[[], Awaitable[None]]) -> None:
        super().__init__(settings)
        self._look = look

    async def get(self, key: str, *, max_bytes: int, deadline_s: float = DEFAULT_DEADLINE_S) -> StoredObject:
        if isinstance(parse_key("p", key), ChunkName):
            await self._look()
        return await super().get(key, max_bytes=max_bytes, deadline_s=deadline_s)


async def test_a_lease_tells_what_is_held_and_during_a_pull_what_is_read(site: WeightSite) -> None:
    publisher = await site.publisher()
    await site.publish(publisher, 0, 1)

    async def lease() -> Lease:
        (found,) = await read_leases(site.store, "p", ttl_s=600.0, deadline_s=D)
        return found

    pinned: list[Lease] = []

    async def look() -> None:
        await puller.renew_lease(deadline_s=D)  # the worker's own renewal must not take the pins away
        pinned.append(await lease())

    async with WatchedStore(site.settings, look) as store:
        puller = await site.puller(store=store)
        await puller.pull(deadline_s=D)
    entries = (await site.latest()).catalogue
    assert pinned[0].pins == tuple(entry.manifest for entry in entries)
    assert await lease() == Lease(member="pulled", held=Position(1, 1))
