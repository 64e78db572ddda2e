"""Folds made from a real SeaweedFS alone, beside a publisher that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.weights.states import TrainedState
from tests.support.weights.weight_site import RULES, SIGNER, D, WeightSite, content
from trimtab.fabric.objects.client import ObjectStore, StoredObject
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Verifier
from trimtab.weights.folding import FoldPlan, FoldRefused, FoldWriter, plan_fold
from trimtab.weights.store.chunk_fetch import MissingChunk
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import SupersededTrainer
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.upkeep import UpkeepRules


class StoreWithRival(ObjectStore):
    """Lets `rival` run once, after the pointer was read and before anything is done with what was read."""

    rival: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str, *, max_bytes: int, deadline_s: float = D) -> StoredObject:
        stored = await super().get(key, max_bytes=max_bytes, deadline_s=deadline_s)
        if key.endswith("latest.json") and self.rival is not None:
            rival, self.rival = self.rival, None
            await rival()
        return stored


@pytest.fixture
async def own_store(site: WeightSite, object_store_settings: ObjectStoreSettings) -> AsyncIterator[StoreWithRival]:
    prefix = site.store.full_key("x").removesuffix("/x")
    async with StoreWithRival(object_store_settings.model_copy(update={"prefix": prefix})) as store:
        yield store


def fold_writer(store: ObjectStore, scratch: Path) -> FoldWriter:
    return FoldWriter(
        store=store, policy="p", signer=SIGNER, verifier=Verifier([SIGNER.public_text]), member="folder",
        scratch=scratch, clock=lambda: 2.0, threads=2,
    )  # fmt: skip


async def planned(site: WeightSite, start: int, end: int, *, epoch: int = 1) -> FoldPlan:
    return plan_fold(await site.latest(), Position(epoch, start), Position(epoch, end))


def edges(catalogue: tuple[Entry, ...]) -> set[tuple[int | None, int]]:
    return {(entry.base.version if entry.base else None, entry.target.version) for entry in catalogue}


async def test_one_who_was_away_takes_the_fold(site: WeightSite, tmp_path: Path) -> None:
    publisher, away = await site.publisher(), await site.puller("away")
    await site.publish(publisher, 0, 1)
    await away.pull(deadline_s=D)
    await site.publish(publisher, 2, 3, 4, 5)
    fetched: list[tuple[int, int]] = []
    encoded: list[tuple[int, int]] = []
    entry = await fold_writer(site.store, tmp_path).fold(
        await planned(site, 1, 5),
        deadline_s=D,
        fetched=lambda done, total: fetched.append((done, total)),
        encoded=lambda done, total: encoded.append((done, total)),
    )
    latest = await site.latest()
    singles = sum(other.bytes for other in latest.catalogue if other.base and other.base.version in (1, 2, 3, 4))
    assert entry in latest.catalogue
    assert entry.bytes < singles - entry.bytes
    assert fetched[-1][0] == fetched[-1][1] > 0
    assert encoded[-1] == (3, 3)
    seen: list[int] = []
    assert await away.pull(deadline_s=D, progress=lambda _, total: seen.append(total)) == Position(1, 5)
    assert content(away) == TrainedState(5).file()
    assert seen[-1] < entry.bytes
    assert set(await site.sizes("lease")) == {"weights/p/lease/away"}
    assert not list(tmp_path.glob("chunks"))


async def test_a_fold_is_the_one_that_the_trainer_would_have_made(site: WeightSite, tmp_path: Path) -> None:
    """Same start, same end, same codec: the same bytes, although one had the states in memory and one had not."""
    rules = UpkeepRules(anchor_every=1000, fold_every=4, collection=RULES.collection)
    publisher = await site.publisher(rules=rules)
    await site.publish(publisher, 0)
    for version in range(1, 5):
        await site.publish(publisher, version)
        await publisher.flush()
    theirs = next(
        entry for entry in (await site.latest()).catalogue if entry.base == Position(1, 0) and entry.target.version == 4
    )
    other = await site.publisher()
    await site.publish(other, 0, 1, 2, 3, 4)
    ours = await fold_writer(site.store, tmp_path).fold(await planned(site, 0, 4, epoch=2), deadline_s=D)
    reader = ManifestReader(site.store, "p", Verifier([SIGNER.public_text]))
    pieces = [(await reader.read(entry, deadline_s=D)).pieces for entry in (theirs, ours)]
    assert pieces[0] == pieces[1]


async def test_a_publisher_goes_on_before_during_and_after(
    site: WeightSite, own_store: StoreWithRival, tmp_path: Path
) -> None:
    publisher, away = await site.publisher(), await site.puller("away")
    await site.publish(publisher, 0)
    await away.pull(deadline_s=D)
    await site.publish(publisher, 1, 2, 3)
    plan = await planned(site, 0, 3)
    await site.publish(publisher, 4)

    async def publish_in_between() -> None:
        await site.publish(publisher, 5)

    own_store.rival = publish_in_between
    entry = await fold_writer(own_store, tmp_path).fold(plan, deadline_s=D)
    assert own_store.rival is None
    await site.publish(publisher, 6)
    latest = await site.latest()
    assert latest.newest == Position(1, 6)
    assert latest.epoch == publisher.epoch
    assert edges(latest.catalogue) == {(None, 0), (0, 3), *((version, version + 1) for version in range(6))}
    assert entry.target == Position(1, 3)
    assert await away.pull(deadline_s=D) == Position(1, 6)
    assert content(away) == TrainedState(6).file()


async def test_a_trainer_that_starts_meanwhile_ends_the_fold(
    site: WeightSite, own_store: StoreWithRival, tmp_path: Path
) -> None:
    await site.publish(await site.publisher(), 0, 1, 2)
    before = (await site.latest()).catalogue
    plan = await planned(site, 0, 2)
    await site.publisher()
    with pytest.raises(SupersededTrainer):
        await fold_writer(own_store, tmp_path).fold(plan, deadline_s=D)
    assert (await site.latest()).catalogue == before
    assert not await site.sizes("lease")


async def test_versions_of_an_earlier_epoch_can_be_a_start_but_no_end(site: WeightSite, tmp_path: Path) -> None:
    await site.publish(await site.publisher(), 0, 1, 2)
    away = await site.puller("away")
    await away.pull(deadline_s=D)
    await site.publish(await site.publisher(), 2, 3, 4)
    latest = await site.latest()
    with pytest.raises(FoldRefused, match="earlier epoch"):
        plan_fold(latest, Position(1, 0), Position(1, 2))
    await fold_writer(site.store, tmp_path).fold(plan_fold(latest, Position(1, 2), Position(2, 4)), deadline_s=D)
    assert await away.pull(deadline_s=D) == Position(2, 4)
    assert content(away) == TrainedState(4).file()


async def test_what_cannot_be_folded_is_refused_with_the_reason(site: WeightSite) -> None:
    await site.publish(await site.publisher(), 0, 1, 2)
    await site.publish(await site.publisher(), 1, 2, run=7)
    latest = await site.latest()
    for start, end, reason in [
        (Position(2, 2), Position(2, 1), "does not come after"),
        (Position(2, 1), Position(2, 9), "version 9 of epoch 2 is not in the catalogue"),
        (Position(1, 8), Position(2, 2), "version 8 of epoch 1 is not in the catalogue"),
        (Position(2, 1), Position(2, 2), "is there already"),
        (Position(1, 0), Position(2, 2), "not of one lineage"),
    ]:
        with pytest.raises(FoldRefused, match=reason):
            plan_fold(latest, start, end)


async def test_a_lost_chunk_and_a_lost_manifest_end_a_fold_before_anything_is_written(
    site: WeightSite, tmp_path: Path
) -> None:
    await site.publish(await site.publisher(), 0, 1, 2)
    plan = await planned(site, 0, 2)
    before = await site.latest()
    reader = ManifestReader(site.store, "p", Verifier([SIGNER.public_text]))
    manifest = await reader.read(plan.between[1], deadline_s=D)
    await site.store.delete(next(iter(manifest.chunk_keys())))
    with pytest.raises(MissingChunk):
        await fold_writer(site.store, tmp_path).fold(plan, deadline_s=D)
    await site.store.delete(plan.between[0].key("p"))
    with pytest.raises(ObjectNotFound):
        await fold_writer(site.store, tmp_path).fold(plan, deadline_s=D)
    assert await site.latest() == before
