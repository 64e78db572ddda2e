"""Publishing and pulling weights through a real SeaweedFS and a real NATS."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.weights.states import LAYOUT, TrainedState
from tests.polling import eventually
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreTimeout
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.apply.errors import CopyInUse
from trimtab.weights.baseline import LayoutChanged
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.layout import StateLayout
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import PullLimits, WeightPuller
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.latest import Latest, LatestPointer, SupersededTrainer
from trimtab.weights.store.leases import Lease, read_leases
from trimtab.weights.store.manifest import InvalidManifest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import BudgetExceeded
from trimtab.weights.upkeep import UpkeepRules

D = 20.0
SIGNER = Signer.generate()
RULES = UpkeepRules(
    anchor_every=1000,
    fold_every=None,
    collection=CollectionRules(keep_versions=50, lease_ttl_s=600.0, grace_s=600.0),
)


@dataclass(frozen=True)
class Place:
    """A part of the store and a bucket that no other test uses, and whatever a test opens there."""

    store: ObjectStore
    pointers: KeyValue
    folder: Path
    closing: AsyncExitStack

    async def publisher(self, *, rules: UpkeepRules = RULES, signer: Signer = SIGNER) -> WeightPublisher:
        publisher = await WeightPublisher.open(
            self.store, self.pointers, job="j", policy="p", signer=signer, rules=rules, clock=lambda: 1.0,
            folder=self.folder / uuid.uuid4().hex, codec=Codec.AUTO, deadline_s=D,
        )  # fmt: skip
        self.closing.push_async_callback(publisher.close)
        return publisher

    async def publish(self, publisher: WeightPublisher, *versions: int, run: int = 0) -> WeightPointer:
        for version in versions:
            captured = publisher.capture(TrainedState(version, run))
            pointer = await publisher.publish(version, captured, deadline_s=D)
        return pointer

    async def puller(self, name: str = "pulled", *, limits: PullLimits = PullLimits()) -> WeightPuller:  # noqa: B008
        folder = self.folder / name
        puller = WeightPuller(
            self.store, "p", Verifier([SIGNER.public_text]), folder=folder / "copy", spool=folder / "spool",
            member=name, limits=limits, threads=2,
        )  # fmt: skip
        await puller.open()
        self.closing.push_async_callback(puller.close)
        return puller

    async def announced(self) -> WeightPointer:
        return decode((await self.pointers.get("p", deadline_s=D)).value, WeightPointer)

    async def latest(self) -> Latest:
        latest = await LatestPointer(self.store, "p").read(deadline_s=D)
        assert latest is not None
        return latest

    async def sizes(self, part: str) -> dict[str, int]:
        return {info.key: info.size async for info in self.store.scan("weights/p/") if f"/{part}/" in info.key}


@pytest.fixture
async def place(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> AsyncIterator[Place]:
    name = f"w{uuid.uuid4().hex[:12]}"
    settings = object_store_settings.model_copy(update={"prefix": f"t/{name}"})
    async with await Bus.connect(nats_settings, name="test") as bus, ObjectStore(settings) as store:
        pointers = await KeyValue.declare(bus, JobTopology("t", name).weights, deadline_s=D)
        async with AsyncExitStack() as closing:
            yield Place(store, pointers, tmp_path, closing)


def content(puller: WeightPuller) -> bytes:
    return (puller.folder / "model.safetensors").read_bytes()


async def test_what_is_pulled_is_what_was_published_version_after_version(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    for version in (3, 4, 5, 9):
        pointer = await place.publish(publisher, version)
        assert await place.announced() == pointer
        assert await puller.pull(await place.announced(), deadline_s=D) == Position(1, version)
        assert content(puller) == TrainedState(version).file()
        assert puller.copy is not None
        puller.copy.verify()


async def test_live_pools_take_deltas_only(place: Place) -> None:
    publisher = await place.publisher()
    anchor = await place.publish(publisher, 0)
    delta = await place.publish(publisher, 1)
    assert (anchor.base_version, delta.base_version) == (None, 0)
    assert delta.size_bytes < anchor.size_bytes / 20
    assert sum((await place.sizes("full")).values()) > 0
    assert len(await place.sizes("full")) == 1


async def test_an_unchanged_version_costs_a_manifest(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    await place.publish(publisher, 3)
    await puller.pull(deadline_s=D)
    before = await place.sizes("obj")
    captured = publisher.capture(TrainedState(3))
    pointer = await publisher.publish(4, captured, deadline_s=D)
    assert await place.sizes("obj") == before
    assert await puller.pull(pointer, deadline_s=D) == Position(1, 4)
    assert content(puller) == TrainedState(3).file()


async def test_one_who_was_away_catches_up_and_one_who_joins_begins_with_the_anchor(place: Place) -> None:
    publisher, away = await place.publisher(), await place.puller("away")
    await place.publish(publisher, 0)
    await away.pull(deadline_s=D)
    await place.publish(publisher, 1, 2, 3, 4)
    joiner = await place.puller("joiner")
    for puller in (away, joiner):
        assert await puller.pull(deadline_s=D) == Position(1, 4)
        assert content(puller) == TrainedState(4).file()


async def test_folds_and_anchors_shorten_the_way(place: Place) -> None:
    rules = UpkeepRules(anchor_every=6, fold_every=4, collection=RULES.collection)
    publisher, away = await place.publisher(rules=rules), await place.puller("away")
    await place.publish(publisher, 0)
    await away.pull(deadline_s=D)
    for version in range(1, 9):
        await place.publish(publisher, version)
        await publisher.flush()
    entries = (await place.latest()).catalogue
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
    manifests = sum((await place.sizes("fold")).values())
    both = sum(e.bytes for e in entries if e.base and (e.base.version, e.target.version) in {(0, 4), (4, 8)})
    assert seen[-1] == (both - manifests, both - manifests)
    joiner = await place.puller("joiner")
    await joiner.pull(deadline_s=D)
    assert content(joiner) == TrainedState(8).file()


async def test_a_restarted_pool_goes_on_from_its_copy(place: Place) -> None:
    publisher, first = await place.publisher(), await place.puller()
    await place.publish(publisher, 0)
    await first.pull(deadline_s=D)
    await first.close()
    await place.publish(publisher, 1)
    second = await place.puller()
    assert second.held == Position(1, 0)
    fetched: list[int] = []
    await second.pull(deadline_s=D, progress=lambda done, total: fetched.append(total))
    assert content(second) == TrainedState(1).file()
    assert fetched[-1] < LAYOUT.data_bytes / 20


async def test_a_trainer_that_resumes_from_a_published_version_ships_nothing_for_it(place: Place) -> None:
    first, puller = await place.publisher(), await place.puller()
    await place.publish(first, 5, 6, 7)
    await puller.pull(deadline_s=D)
    second = await place.publisher()
    pointer = await place.publish(second, 6)
    assert pointer.size_bytes < 1000
    # Version 7 of the first trainer is of a lineage that is no more: its holder goes back over the anchor.
    for version in (6, 7):
        if version == 7:
            await place.publish(second, 7, run=0)
        assert await puller.pull(deadline_s=D) == Position(2, version)
        assert content(puller) == TrainedState(version).file()


async def test_a_trainer_with_other_weights_begins_with_an_anchor(place: Place) -> None:
    puller = await place.puller()
    await place.publish(await place.publisher(), 0, 1)
    await puller.pull(deadline_s=D)
    pointer = await place.publish(await place.publisher(), 0, run=9)
    assert pointer.base_version is None
    await puller.pull(pointer, deadline_s=D)
    assert content(puller) == TrainedState(0, run=9).file()


async def test_another_model_replaces_the_copy(place: Place) -> None:
    puller = await place.puller()
    await place.publish(await place.publisher(), 0)
    await puller.pull(deadline_s=D)
    other = TrainedState(0, layout=StateLayout.of({"w": ("BF16", (10, 10))}))
    publisher = await place.publisher()
    await publisher.publish(0, publisher.capture(other), deadline_s=D)
    await puller.pull(deadline_s=D)
    assert content(puller) == other.file()


async def test_a_model_that_changes_under_a_publisher_is_refused(place: Place) -> None:
    publisher = await place.publisher()
    await place.publish(publisher, 0)
    with pytest.raises(LayoutChanged):
        publisher.capture(TrainedState(1, layout=StateLayout.of({"w": ("BF16", (10, 10))})))


async def test_a_superseded_trainer_can_publish_nothing_more(place: Place) -> None:
    old, puller = await place.publisher(), await place.puller()
    await place.publish(old, 0)
    new = await place.publisher()
    captured = old.capture(TrainedState(1))
    with pytest.raises(SupersededTrainer):
        await old.publish(1, captured, deadline_s=D)
    await place.publish(new, 0, run=3)
    await puller.pull(deadline_s=D)
    assert content(puller) == TrainedState(0, run=3).file()


async def test_two_trainers_at_once_never_interleave(place: Place) -> None:
    """Both publish as fast as they can; what a pool sees at any time is a version of one of them, whole."""
    trainers = [await place.publisher(), await place.publisher()]
    puller = await place.puller()

    async def train(run: int, publisher: WeightPublisher) -> int:
        try:
            for version in range(6):
                captured = await asyncio.to_thread(publisher.capture, TrainedState(version, run))
                await publisher.publish(version, captured, deadline_s=D)
        except SupersededTrainer:
            return version
        return 6

    async def follow() -> None:
        while True:
            position = await puller.pull(deadline_s=D)
            assert content(puller) == TrainedState(position.version, position.epoch - 1).file()
            await asyncio.sleep(0.02)

    running = [asyncio.create_task(train(run, publisher)) for run, publisher in enumerate(trainers)]
    await eventually(lambda: running[1].done() or running[0].done(), timeout_s=D)
    following = asyncio.create_task(follow())
    done = await asyncio.gather(*running)
    await eventually(lambda: puller.held == Position(2, 5) or following.done(), timeout_s=D)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert done == [0, 6]


async def test_a_publication_that_timed_out_can_be_repeated(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    await place.publish(publisher, 0)
    captured = publisher.capture(TrainedState(1))
    with pytest.raises(StoreTimeout):
        await publisher.publish(1, captured, deadline_s=0.000001)
    pointer = await publisher.publish(1, captured, deadline_s=D)
    again = await publisher.publish(1, captured, deadline_s=D)
    assert pointer.manifest_digest == again.manifest_digest
    await puller.pull(pointer, deadline_s=D)
    assert content(puller) == TrainedState(1).file()


async def test_manifests_signed_by_someone_else_are_refused(place: Place) -> None:
    publisher, puller = await place.publisher(signer=Signer.generate()), await place.puller()
    await place.publish(publisher, 0)
    with pytest.raises(InvalidManifest, match="signature"):
        await puller.pull(deadline_s=D)
    assert puller.held is None


async def test_a_byte_budget_is_kept(place: Place) -> None:
    publisher = await place.publisher()
    await place.publish(publisher, 0)
    puller = await place.puller(limits=PullLimits(max_bytes=10_000))
    with pytest.raises(BudgetExceeded) as refusal:
        await puller.pull(deadline_s=D)
    assert refusal.value.needed > 100_000
    assert puller.held is None


async def test_a_prepared_update_leaves_the_copy_as_it_was_until_it_is_committed(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    await place.publish(publisher, 0)
    await puller.pull(deadline_s=D)
    pointer = await place.publish(publisher, 1)
    update = await puller.prepare(pointer, deadline_s=D)
    assert update is not None
    assert content(puller) == TrainedState(0).file()
    update.rollback()
    update.close()
    assert content(puller) == TrainedState(0).file()
    again = await puller.prepare(pointer, deadline_s=D)
    assert again is not None
    with again:
        again.commit()
    assert content(puller) == TrainedState(1).file()


async def test_nothing_is_left_in_the_spool(place: Place, tmp_path: Path) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    await place.publish(publisher, 0, 1)
    await puller.pull(deadline_s=D)
    await puller.pull(await place.publish(publisher, 2), deadline_s=D)
    left = {path.name for path in (tmp_path / "pulled" / "spool").iterdir()}
    assert not [name for name in left if len(name) >= 64]


async def test_a_copy_that_was_damaged_is_noticed_and_built_again(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    await place.publish(publisher, 0)
    await puller.pull(deadline_s=D)
    with (puller.folder / "model.safetensors").open("r+b") as file:
        file.seek(len(LAYOUT.prefix) + 5000)
        file.write(bytes([file.read(1)[0] ^ 0x10]))
    pointer = await place.publish(publisher, 1)
    assert await puller.pull(pointer, deadline_s=D) == Position(1, 1)
    assert content(puller) == TrainedState(1).file()


async def test_old_versions_go_when_nobody_holds_them(place: Place) -> None:
    rules = UpkeepRules(
        anchor_every=3,
        fold_every=None,
        collection=CollectionRules(keep_versions=2, lease_ttl_s=600.0, grace_s=0.0),
        collect_every_s=0.0,
    )
    publisher = await place.publisher(rules=rules)
    away, gone = await place.puller("away"), await place.puller("gone")
    await place.publish(publisher, 0, 1)
    await away.pull(deadline_s=D)
    await gone.pull(deadline_s=D)
    await gone.give_up_lease(deadline_s=D)

    async def publish_and_collect(*versions: int) -> set[int]:
        for version in versions:
            await place.publish(publisher, version)
            await publisher.flush()
        return {entry.target.version for entry in (await place.latest()).catalogue}

    assert await publish_and_collect(*range(2, 9)) >= {2, 3, 4, 5, 6, 7, 8}  # all that leads on from version 1
    assert await away.pull(deadline_s=D) == Position(1, 8)
    kept = await publish_and_collect(9, 10, 11)
    assert kept == {8, 9, 10, 11} or kept == {9, 10, 11}  # the anchor of 9, and what leads on from 8
    objects = await place.sizes("obj")
    referenced = {entry.target.version for entry in (await place.latest()).catalogue}
    assert len(objects) <= len(referenced) + 2
    for puller in (away, gone, await place.puller("joiner")):
        assert await puller.pull(deadline_s=D) == Position(1, 11)
        assert content(puller) == TrainedState(11).file()


async def test_upkeep_that_fails_does_not_stop_the_versions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = UpkeepRules(anchor_every=1, fold_every=2, collection=RULES.collection)
    publisher, puller = await place.publisher(rules=rules), await place.puller()
    await place.publish(publisher, 0)

    def no_space(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trimtab.weights.upkeep.SpooledBlocks", no_space)
    await place.publish(publisher, 1, 2, 3)
    await publisher.flush()
    entries = (await place.latest()).catalogue
    assert [(e.base.version if e.base else None, e.target.version) for e in entries] == [
        (None, 0),
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    monkeypatch.undo()
    await place.publish(publisher, 4, 5, 6, 7)
    await publisher.flush()
    edges = {(e.base.version if e.base else None, e.target.version) for e in (await place.latest()).catalogue}
    assert (None, 4) in edges
    assert any(base is not None and target - base > 1 for base, target in edges)
    await puller.pull(deadline_s=D)
    assert content(puller) == TrainedState(7).file()


async def test_two_pullers_cannot_share_a_folder(place: Place) -> None:
    await place.puller()
    with pytest.raises(CopyInUse):
        await place.puller()


async def test_a_lease_tells_what_is_held_and_during_a_pull_what_is_read(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    await place.publish(publisher, 0, 1)

    async def lease() -> Lease:
        (found,) = await read_leases(place.store, "p", ttl_s=600.0, deadline_s=D)
        return found

    pinned: list[Lease] = []

    async def look() -> None:
        await puller.renew_lease(deadline_s=D)  # the worker's own renewal must not take the pins away
        pinned.append(await lease())

    looking: list[asyncio.Task[None]] = []
    await puller.pull(deadline_s=D, progress=lambda done, total: looking.append(asyncio.create_task(look())))
    await asyncio.gather(*looking)
    entries = (await place.latest()).catalogue
    assert pinned[0].pins == tuple(entry.manifest for entry in entries)
    assert await lease() == Lease(member="pulled", held=Position(1, 1))


async def test_a_first_version_that_never_got_out_is_passed_over(place: Place) -> None:
    publisher, puller = await place.publisher(), await place.puller()
    captured = publisher.capture(TrainedState(1))
    with pytest.raises(StoreTimeout):
        await publisher.publish(1, captured, deadline_s=0.000001)
    pointer = await publisher.publish(2, publisher.capture(TrainedState(2)), deadline_s=D)
    assert await puller.pull(pointer, deadline_s=D) == Position(1, 2)
    assert content(puller) == TrainedState(2).file()
