"""Publishing and pulling weights through a real SeaweedFS and a real NATS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.weights.states import LAYOUT, TrainedState
from tests.support.weights.weight_site import D, WeightSite, content
from trimtab.fabric.objects.errors import StoreTimeout
from trimtab.fabric.signing import Signer
from trimtab.weights.apply.copy_files import CopyInUse
from trimtab.weights.puller import PullLimits
from trimtab.weights.store.manifest import InvalidManifest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import BudgetExceeded


async def test_what_is_pulled_is_what_was_published_version_after_version(site: WeightSite) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    for version in (3, 4, 5, 9):
        pointer = await site.publish(publisher, version)
        assert await site.announced() == pointer
        assert await puller.pull(await site.announced(), deadline_s=D) == Position(1, version)
        assert content(puller) == TrainedState(version).file()
        assert puller.copy is not None
        puller.copy.verify()


async def test_live_pools_take_deltas_only(site: WeightSite) -> None:
    publisher = await site.publisher()
    anchor = await site.publish(publisher, 0)
    delta = await site.publish(publisher, 1)
    assert (anchor.base_version, delta.base_version) == (None, 0)
    assert delta.size_bytes < anchor.size_bytes / 20
    assert sum((await site.sizes("full")).values()) > 0
    assert len(await site.sizes("full")) == 1


async def test_an_unchanged_version_costs_a_manifest(site: WeightSite) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    await site.publish(publisher, 3)
    await puller.pull(deadline_s=D)
    before = await site.sizes("obj")
    captured = publisher.capture(TrainedState(3))
    pointer = await publisher.publish(4, captured, deadline_s=D)
    assert await site.sizes("obj") == before
    assert await puller.pull(pointer, deadline_s=D) == Position(1, 4)
    assert content(puller) == TrainedState(3).file()


async def test_one_who_was_away_catches_up_and_one_who_joins_begins_with_the_anchor(site: WeightSite) -> None:
    publisher, away = await site.publisher(), await site.puller("away")
    await site.publish(publisher, 0)
    await away.pull(deadline_s=D)
    await site.publish(publisher, 1, 2, 3, 4)
    joiner = await site.puller("joiner")
    for puller in (away, joiner):
        assert await puller.pull(deadline_s=D) == Position(1, 4)
        assert content(puller) == TrainedState(4).file()


async def test_a_restarted_pool_goes_on_from_its_copy(site: WeightSite) -> None:
    publisher, first = await site.publisher(), await site.puller()
    await site.publish(publisher, 0)
    await first.pull(deadline_s=D)
    await first.close()
    await site.publish(publisher, 1)
    second = await site.puller()
    assert second.held == Position(1, 0)
    fetched: list[int] = []
    await second.pull(deadline_s=D, progress=lambda done, total: fetched.append(total))
    assert content(second) == TrainedState(1).file()
    assert fetched[-1] < LAYOUT.data_bytes / 20


async def test_a_publication_that_timed_out_can_be_repeated(site: WeightSite) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    await site.publish(publisher, 0)
    captured = publisher.capture(TrainedState(1))
    with pytest.raises(StoreTimeout):
        await publisher.publish(1, captured, deadline_s=0.000001)
    pointer = await publisher.publish(1, captured, deadline_s=D)
    again = await publisher.publish(1, captured, deadline_s=D)
    assert pointer.manifest_digest == again.manifest_digest
    await puller.pull(pointer, deadline_s=D)
    assert content(puller) == TrainedState(1).file()


async def test_manifests_signed_by_someone_else_are_refused(site: WeightSite) -> None:
    publisher, puller = await site.publisher(signer=Signer.generate()), await site.puller()
    await site.publish(publisher, 0)
    with pytest.raises(InvalidManifest, match="signature"):
        await puller.pull(deadline_s=D)
    assert puller.held is None


async def test_a_byte_budget_is_kept(site: WeightSite) -> None:
    publisher = await site.publisher()
    await site.publish(publisher, 0)
    puller = await site.puller(limits=PullLimits(max_bytes=10_000))
    with pytest.raises(BudgetExceeded) as refusal:
        await puller.pull(deadline_s=D)
    assert refusal.value.needed > 100_000
    assert puller.held is None


async def test_a_prepared_update_leaves_the_copy_as_it_was_until_it_is_committed(site: WeightSite) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    await site.publish(publisher, 0)
    await puller.pull(deadline_s=D)
    pointer = await site.publish(publisher, 1)
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


async def test_nothing_is_left_in_the_spool(site: WeightSite, tmp_path: Path) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    await site.publish(publisher, 0, 1)
    await puller.pull(deadline_s=D)
    await puller.pull(await site.publish(publisher, 2), deadline_s=D)
    left = {path.name for path in (tmp_path / "pulled" / "spool").iterdir()}
    assert not [name for name in left if len(name) >= 64]


async def test_a_copy_that_was_damaged_is_noticed_and_built_again(site: WeightSite) -> None:
    publisher, puller = await site.publisher(), await site.puller()
    await site.publish(publisher, 0)
    await puller.pull(deadline_s=D)
    with (puller.folder / "model.safetensors").open("r+b") as file:
        file.seek(len(LAYOUT.prefix) + 5000)
        file.write(bytes([file.read(1)[0] ^ 0x10]))
    pointer = await site.publish(publisher, 1)
    assert await puller.pull(pointer, deadline_s=D) == Position(1, 1)
    assert content(puller) == TrainedState(1).file()


async def test_two_pullers_cannot_share_a_folder(site: WeightSite) -> None:
    await site.puller()
    with pytest.raises(CopyInUse):
        await site.puller()
