"""Collection takes what nothing needs, in two runs, and never what someone needs."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
import pytest

from tests.support.weights.shelf import POLICY, D, Shelf, content
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.store.keys import chunk_key, condemned_key, lease_key
from trimtab.weights.store.latest import SupersededTrainer
from trimtab.weights.store.leases import InvalidLease, Lease, write_lease
from trimtab.weights.store.manifest import InvalidManifest
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import cheapest_route
from trimtab.weights.store.store_clock import store_now

HOUR = 3600.0


async def orphan(shelf: Shelf, name: str, *, epoch: int = 1) -> str:
    body = content(name, 500)
    key = chunk_key(POLICY, epoch=epoch, sha256=hashlib.sha256(body).hexdigest())
    await shelf.store.put(key, body)
    return key


async def condemned(shelf: Shelf) -> dict[str, float]:
    body = (await shelf.store.get(condemned_key(POLICY), max_bytes=1 << 20)).body
    objects: dict[str, float] = msgspec.json.decode(body)["objects"]
    return objects


async def condemn(shelf: Shelf, key: str, *, since: float) -> None:
    await shelf.store.put(condemned_key(POLICY), msgspec.json.encode({"objects": {key: since}, "writer": "test"}))


async def test_orphans_go_in_the_second_run(shelf: Shelf) -> None:
    chain = await shelf.publish_chain(3)
    key = await orphan(shelf, "left by a crash")
    first = await shelf.collect(keep=5)
    assert (first.dropped, first.condemned, first.deleted) == ((), (key,), ())
    assert set(await condemned(shelf)) == {key}
    second = await shelf.collect(keep=5)
    assert (second.condemned, second.deleted, second.freed_bytes) == ((), (key,), 500)
    assert await condemned(shelf) == {}
    third = await shelf.collect(keep=5)
    assert (third.condemned, third.deleted) == ((), ())
    assert await shelf.keys("/0000") == await shelf.objects_of(*chain)


async def test_what_is_young_stays_and_what_was_condemned_lately_too(shelf: Shelf) -> None:
    await shelf.publish_chain(2)
    key = await orphan(shelf, "young")
    assert (await shelf.collect(grace_s=HOUR)).condemned == ()
    assert (await shelf.collect()).condemned == (key,)
    # Condemned now, and old enough by age only for a run without grace.
    patient = await shelf.collect(grace_s=HOUR)
    assert (patient.condemned, patient.deleted) == ((), ())
    assert key in await shelf.keys()
    # Condemned long ago, but rewritten since: it is young again.
    await condemn(shelf, key, since=1.0)
    assert (await shelf.collect(grace_s=HOUR)).deleted == ()
    # Old, but condemned too lately: here, a little later than this run.
    await condemn(shelf, key, since=await store_now(shelf.store, POLICY, deadline_s=D) + 100)
    impatient = await shelf.collect()
    assert (impatient.condemned, impatient.deleted) == ((key,), ())
    await condemn(shelf, key, since=1.0)
    assert (await shelf.collect()).deleted == (key,)


async def test_old_versions_leave_the_catalogue_first_and_the_store_later(shelf: Shelf) -> None:
    old = await shelf.publish_chain(4)
    anchor = await shelf.publish(4, None, size=90_000)
    step = await shelf.publish(5, Position(1, 4))
    first = await shelf.collect()
    assert first.dropped == tuple(old)
    assert (await shelf.latest()).catalogue == (anchor, step)
    garbage = await shelf.objects_of(*old)
    assert set(first.condemned) == garbage
    assert first.deleted == ()
    second = await shelf.collect()
    assert set(second.deleted) == garbage
    assert [("/obj/" in key) for key in second.deleted] == sorted("/obj/" in key for key in second.deleted)
    assert second.freed_bytes > 4 * 3000
    assert await shelf.keys("/0000") == await shelf.objects_of(anchor, step)
    with pytest.raises(ObjectNotFound):
        await shelf.other().manifests.read(old[0], deadline_s=D)


async def test_the_way_of_a_member_that_is_behind_stays(shelf: Shelf) -> None:
    chain = await shelf.publish_chain(5)
    anchor = await shelf.publish(4, None, size=50_000)
    await write_lease(shelf.store, POLICY, Lease(member="slow", held=Position(1, 2)), deadline_s=D)
    for _ in range(3):
        await shelf.collect()
    latest = await shelf.latest()
    assert latest.catalogue == (chain[3], chain[4], anchor)
    assert cheapest_route(latest, Position(1, 2)).entries == (chain[3], chain[4])
    assert await shelf.keys("/0000") == await shelf.objects_of(chain[3], chain[4], anchor)


async def test_what_a_puller_has_pinned_stays_until_its_lease_is_over(shelf: Shelf) -> None:
    chain = await shelf.publish_chain(3)
    route = cheapest_route(await shelf.latest(), None).entries
    pins = tuple(entry.manifest for entry in route)
    await shelf.publish(3, None, size=50_000)
    assert set((await shelf.collect()).dropped) == set(chain)
    # Pinned only after it was condemned, as by a puller that read the pointer just before.
    await write_lease(shelf.store, POLICY, Lease(member="puller", pins=pins), deadline_s=D)
    for _ in range(2):
        run = await shelf.collect()
        assert (run.condemned, run.deleted) == ((), ())
    for entry in route:
        assert (await shelf.other().manifests.read(entry, deadline_s=D)).target == entry.target
    await write_lease(shelf.store, POLICY, Lease(member="puller", held=Position(1, 3)), deadline_s=D)
    assert set((await shelf.collect()).condemned) == await shelf.objects_of(*chain)
    assert len((await shelf.collect()).deleted) == len(await shelf.objects_of(*chain))


async def test_a_pin_on_what_is_gone_holds_nothing_up(shelf: Shelf) -> None:
    await shelf.publish_chain(2)
    await write_lease(shelf.store, POLICY, Lease(member="late", pins=("ab" * 32,)), deadline_s=D)
    key = await orphan(shelf, "orphan")
    await shelf.collect()
    assert (await shelf.collect()).deleted == (key,)


async def test_a_chunk_that_two_versions_share_stays_with_the_second(shelf: Shelf) -> None:
    with shelf.in_flight.publication() as publication:
        first = await shelf.stage(Position(1, 1), None, publication=publication)
        manifest = await shelf.manifests.read(first, deadline_s=D)
    # The same chunk as one that nothing in the catalogue leads to, and as one that an anchor needs.
    second = await shelf.publish(1, None)
    assert await shelf.objects_of(second) == {second.key(POLICY), *manifest.chunk_keys()}
    for _ in range(2):
        assert (await shelf.collect()).deleted == ()
    assert set(manifest.chunk_keys()) <= await shelf.keys()


async def test_dead_lineages_go_whoever_holds_them(shelf: Shelf) -> None:
    chain = await shelf.publish_chain(5)
    successor = await shelf.other().claim()
    resumed = await successor.publish(3, Position(1, 2))
    await write_lease(shelf.store, POLICY, Lease(member="stranded", held=Position(1, 4)), deadline_s=D)
    first = await successor.collect(keep=10)
    assert first.dropped == tuple(chain[3:])
    dead = await shelf.objects_of(*chain[3:])
    assert set((await successor.collect(keep=10)).deleted) == dead
    assert cheapest_route(await shelf.latest(), Position(1, 4)).entries == (*chain[:3], resumed)
    with pytest.raises(SupersededTrainer):
        await shelf.collect()


async def test_folders_of_later_epochs_and_foreign_objects_are_left_alone(shelf: Shelf) -> None:
    await shelf.publish_chain(2)
    later = await orphan(shelf, "a successor's first chunk", epoch=2)
    foreign = {f"weights/{POLICY}/README", f"weights/{POLICY}/00000001/obj/notes.txt", f"weights/{POLICY}/1/obj/x"}
    for key in foreign:
        await shelf.store.put(key, b"foreign")
    for _ in range(3):
        run = await shelf.collect()
        assert set(run.unknown) == foreign
        assert (run.condemned, run.deleted) == ((), ())
    assert {later, *foreign} <= await shelf.keys()


async def test_leases_of_members_that_are_gone_go_too(shelf: Shelf) -> None:
    await shelf.publish_chain(2)
    await write_lease(shelf.store, POLICY, Lease(member="gone"), deadline_s=D)
    assert (await shelf.collect()).condemned == ()
    key = lease_key(POLICY, "gone")
    assert (await shelf.collect(lease_ttl_s=-10)).condemned == (key,)
    assert (await shelf.collect()).condemned == (), "it lives by the longer time"
    await shelf.collect(lease_ttl_s=-10)
    assert (await shelf.collect(lease_ttl_s=-10)).deleted == (key,)


async def test_a_publication_that_finds_a_condemned_chunk_in_place_can_rely_on_it(shelf: Shelf) -> None:
    """An attempt failed before the pointer; the same version is published again while its leftovers are collected."""
    await shelf.publish(0, None)
    target, base = Position(1, 1), Position(1, 0)
    with shelf.in_flight.publication() as publication:
        entry = await shelf.stage(target, base, publication=publication)
    leftovers = await shelf.objects_of(entry)
    assert set((await shelf.collect()).condemned) == leftovers
    with shelf.in_flight.publication() as publication:
        assert await shelf.stage(target, base, publication=publication) == entry
        run = await shelf.collect()
        assert (run.condemned, run.deleted) == ((), ())
        await shelf.pointer.update(lambda latest: latest.adding(entry), epoch=1, deadline_s=D)
    for _ in range(2):
        assert (await shelf.collect()).deleted == ()
    assert leftovers <= await shelf.keys()


async def test_publications_and_collections_at_once_break_no_version(shelf: Shelf) -> None:
    await shelf.publish(0, None)
    done = asyncio.Event()

    async def keep_collecting() -> int:
        deleted = 0
        while not done.is_set():
            deleted += len((await shelf.collect(keep=2)).deleted)
        return deleted

    collecting = [asyncio.create_task(keep_collecting()) for _ in range(2)]
    try:
        for version in range(1, 16):
            base = Position(1, version - 1)
            with shelf.in_flight.publication() as publication:  # given up before the pointer
                await shelf.stage(Position(1, version), base, publication=publication)
            await shelf.publish(version, None if version % 5 == 0 else base)
    finally:
        done.set()
    assert sum(await asyncio.gather(*collecting)) > 0
    reader = shelf.other().manifests
    present = await shelf.keys()
    for entry in (await shelf.latest()).catalogue:
        assert set((await reader.read(entry, deadline_s=D)).chunk_keys()) <= present


async def test_two_collectors_at_once_do_no_harm(shelf: Shelf) -> None:
    chain = await shelf.publish_chain(3)
    orphans = {await orphan(shelf, f"orphan {number}") for number in range(5)}
    other = shelf.other()
    other.epoch = shelf.epoch
    for _ in range(3):
        await asyncio.gather(shelf.collect(keep=5), other.collect(keep=5))
    assert not orphans & await shelf.keys()
    assert await shelf.keys("/0000") == await shelf.objects_of(*chain)


async def test_nothing_is_deleted_while_something_cannot_be_read(shelf: Shelf) -> None:
    (anchor,) = await shelf.publish_chain(1)
    key = await orphan(shelf, "orphan")
    await shelf.collect()
    stranger = shelf.other()
    stranger.epoch = shelf.epoch
    stranger.manifests = ManifestReader(shelf.store, POLICY, Verifier([Signer.generate().public_text]))
    with pytest.raises(InvalidManifest, match="signature is wrong"):
        await stranger.collect()
    await shelf.store.put(lease_key(POLICY, "odd"), b"not a lease")
    with pytest.raises(InvalidLease):
        await shelf.collect()
    await shelf.store.delete(lease_key(POLICY, "odd"))
    sealed = (await shelf.store.get(anchor.key(POLICY), max_bytes=1 << 20)).body
    await shelf.store.delete(anchor.key(POLICY))
    blind = shelf.other()
    blind.epoch = shelf.epoch
    with pytest.raises(ObjectNotFound):
        await blind.collect()
    assert key in await shelf.keys()
    await shelf.store.put(anchor.key(POLICY), sealed)
    assert (await blind.collect()).deleted == (key,)


async def test_a_damaged_list_of_the_condemned_begins_anew(shelf: Shelf) -> None:
    await shelf.publish_chain(1)
    key = await orphan(shelf, "orphan")
    await shelf.collect()
    await shelf.store.put(condemned_key(POLICY), b"{broken")
    assert (await shelf.collect()).condemned == (key,)
    assert (await shelf.collect()).deleted == (key,)


async def test_manifests_are_read_once_and_refused_with_key_and_reason(shelf: Shelf) -> None:
    anchor, step = await shelf.publish_chain(2)
    reader = shelf.other().manifests
    manifest = await reader.read(step, deadline_s=D)
    body = (await shelf.store.get(anchor.key(POLICY), max_bytes=1 << 20)).body
    await shelf.store.put(step.key(POLICY), body)
    assert await reader.read(step, deadline_s=D) is manifest
    with pytest.raises(InvalidManifest, match="reordered or replayed"):
        await reader.read(msgspec.structs.replace(step, target=Position(1, 9)), deadline_s=D)
    with pytest.raises(InvalidManifest, match=f"{step.key(POLICY)} is refused: its SHA-256"):
        await shelf.other().manifests.read(step, deadline_s=D)
