"""Whatever happens to the objects of a policy by accident, a pool never takes wrong weights: it refuses with the
reason, keeps what it has, and goes on once things are right again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.sizes import Sizes
from tests.support.weights.published import POLICY, D, Published
from tests.support.weights.small_policy import content, flipped, pulls_newest, refusal
from tests.support.weights.small_policy import published as published
from tests.support.weights.small_policy import puller as puller
from tests.support.weights.small_policy import store as store
from tests.support.weights.states import TrainedState
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ChecksumMismatch, ObjectNotFound
from trimtab.weights.assembly import ChunkFiles, Stage, WrongWeights, rebuilt
from trimtab.weights.puller import PULL_FAILURES, WeightPuller
from trimtab.weights.store.chunk_fetch import DamagedChunk, MissingChunk, fetch_chunks
from trimtab.weights.store.collection import CollectionRules, collect
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.keys import latest_key, lease_key
from trimtab.weights.store.latest import InvalidPointer, LatestPointer
from trimtab.weights.store.leases import InvalidLease
from trimtab.weights.store.manifest import Chunk, InvalidManifest, WeightManifest, open_sealed, unseal
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position

PULLS = 20
POINTER_FLIPS = 40
LEASE_FLIPS = 25


async def test_every_flipped_bit_of_chunks_and_manifests_is_detected(
    published: Published, store: ObjectStore, tmp_path: Path, sizes: Sizes
) -> None:
    flips = sizes.flipped_bits
    """Chunks go through the store and the fetch; a chunk's blocks are decoded too, as if SHA-256 had not noticed."""
    chance = random.Random(20261115)
    owners = {key: manifest for manifest in published.manifests.values() for key in manifest.chunk_keys()}
    victims: list[str | Entry] = [*owners, *published.manifests]
    detected: Counter[str] = Counter()
    turn = asyncio.Semaphore(8)

    async def damage_chunk(number: int, key: str) -> None:
        chunk, body = published.chunks[key], flipped(published.bodies[key], chance)
        spool = tmp_path / str(number)
        async with turn:
            await store.put(f"damaged/{number}", body)
            with pytest.raises(DamagedChunk, match=f"is not the chunk with SHA-256 {chunk.sha256}"):
                await fetch_chunks(
                    store, {f"damaged/{number}": chunk}, spool=spool, rate=None, parallel=1, deadline_s=D
                )
        assert list(spool.iterdir()) == []
        (spool / chunk.sha256).write_bytes(body)
        check_blocks(published, owners[key], chunk, ChunkFiles({chunk.sha256: spool / chunk.sha256}))
        detected["chunk"] += 1

    def damage_manifest(entry: Entry) -> None:
        body = flipped(published.bodies[entry.key(POLICY)], chance)
        with pytest.raises(InvalidManifest, match="damaged or replaced"):
            open_sealed(body, verifier=published.verifier, policy=POLICY, entry=entry)
        # Someone who changes a manifest can name it by its new digest, but not sign it.
        with pytest.raises(InvalidManifest, match="its signature is wrong|not a sealed manifest"):
            unseal(body, sha256=hashlib.sha256(body).hexdigest(), verifier=published.verifier)
        detected["manifest"] += 1

    jobs = []
    for number in range(flips):
        victim = chance.choice(victims)
        if isinstance(victim, str):
            jobs.append(damage_chunk(number, victim))
        else:
            damage_manifest(victim)
    await asyncio.gather(*jobs)
    assert detected.total() == flips
    assert min(detected["chunk"], detected["manifest"]) > flips / 10


def check_blocks(published: Published, manifest: WeightManifest, damaged: Chunk, files: ChunkFiles) -> None:
    """Decoding refuses what it does not give the promised block. Bits that no decoder looks at may come through."""
    states = {
        position: TrainedState(position.version, layout=published.layout).content()
        for position in (manifest.base, manifest.target)
        if position is not None
    }
    for piece in manifest.pieces:
        if manifest.chunks[piece.chunk] != damaged:
            continue
        block = published.layout.blocks[piece.block]
        base = states[manifest.base][block.start : block.end] if manifest.base else None
        try:
            rebuilt_block, _ = rebuilt(block, base, [Stage(manifest, piece)], files)
        except WrongWeights:
            continue
        assert np.array_equal(rebuilt_block, states[manifest.target][block.start : block.end])


async def test_pulls_of_damaged_objects_are_refused_and_succeed_when_those_are_restored(
    published: Published, store: ObjectStore, tmp_path: Path
) -> None:
    chance = random.Random(7)
    victims = sorted(published.on_route().items(), key=lambda item: item[0])
    kinds: Counter[type] = Counter()
    for number in range(PULLS):
        key, victim = chance.choice(victims)
        puller = await published.puller(store, tmp_path / str(number))
        async with published.replaced(store, {key: flipped(published.bodies[key], chance)}):
            refused = await refusal(published, puller)
        assert key in str(refused)
        expected = "its content has another digest" if isinstance(victim, Chunk) else "damaged or replaced"
        assert expected in str(refused)
        await pulls_newest(published, puller)
        await puller.close()
        kinds[type(refused)] += 1
    assert set(kinds) == {DamagedChunk, InvalidManifest}


async def test_bits_that_rot_under_the_stores_digest_are_noticed_in_every_kind_of_object(
    published: Published, store: ObjectStore, puller: WeightPuller
) -> None:
    """Pointers and leases are not signed: this is what detects accidents to them."""
    for key in (latest_key(POLICY), lease_key(POLICY, "pool"), *published.on_route()):
        info = await store.head(key)
        body = flipped(published.bodies[key], random.Random(1))
        store.put_once(key, body, digest=info.digest or "", write_id="rot")
        with pytest.raises(ChecksumMismatch, match=key):
            await store.get(key, max_bytes=1 << 30)
        if key == latest_key(POLICY):
            assert isinstance(await refusal(published, puller), ChecksumMismatch)
        await store.put(key, published.bodies[key])
    await pulls_newest(published, puller)


async def test_a_changed_pointer_leads_to_genuine_weights_or_nowhere(
    published: Published, store: ObjectStore, tmp_path: Path
) -> None:
    """Nobody signs it. A flipped bit may go unnoticed if it changes nothing that the pull looks at, or hides versions;
    but what a pool then holds is what the trainer published under the number that it shows.
    """
    chance = random.Random(11)
    key = latest_key(POLICY)
    outcomes: Counter[str] = Counter()
    for number in range(POINTER_FLIPS):
        puller = await published.puller(store, tmp_path / str(number))
        async with published.replaced(store, {key: flipped(published.bodies[key], chance)}):
            try:
                held = await puller.pull(deadline_s=D)
            except PULL_FAILURES as error:
                outcomes[type(error).__name__] += 1
                assert puller.held == Position(1, 0)
                assert content(puller) == published.weights(0)
            else:
                outcomes["pulled"] += 1
                assert content(puller) == published.weights(held.version)
        await puller.close()
    assert outcomes[InvalidPointer.__name__] > POINTER_FLIPS / 4


async def test_a_changed_lease_stops_collection_or_protects_something_else_but_never_the_catalogue_less(
    published: Published, store: ObjectStore
) -> None:
    chance = random.Random(13)
    rules = CollectionRules(keep_versions=100, lease_ttl_s=600.0, grace_s=0.0)
    key = lease_key(POLICY, "pool")
    wanted = {*published.chunks, *(entry.key(POLICY) for entry in published.latest.catalogue)}
    refused = 0
    for _ in range(LEASE_FLIPS):
        async with published.replaced(store, {key: flipped(published.bodies[key], chance)}):
            try:
                done = await collect(
                    store, POLICY, epoch=1, rules=rules, pointer=LatestPointer(store, POLICY), in_flight=InFlight(),
                    manifests=ManifestReader(store, POLICY, published.verifier), deadline_s=D,
                )  # fmt: skip
            except InvalidLease:
                refused += 1
            else:
                assert done.dropped == ()
            present = {info.key async for info in store.scan("weights/")}
        assert wanted <= present
    assert refused > LEASE_FLIPS / 4


Damage = Callable[[bytes], bytes | None]


@pytest.mark.parametrize(
    ("damage", "of_chunk", "of_manifest"),
    [
        (lambda body: body[:-1], "another digest", "damaged or replaced"),
        (lambda body: b"", "another digest", "damaged or replaced"),
        (lambda body: body + b"x", "more than the", "damaged or replaced"),
        (lambda body: None, "a chunk is missing.*plan again", "not found|does not exist|NoSuchKey"),
    ],
    ids=["cut short", "emptied", "longer", "missing"],
)
async def test_objects_that_are_cut_or_missing_are_refused(
    published: Published, store: ObjectStore, puller: WeightPuller, damage: Damage, of_chunk: str, of_manifest: str
) -> None:
    chunk = next(key for key, victim in published.on_route().items() if isinstance(victim, Chunk))
    manifest = published.route()[0].key(POLICY)
    for key, reason in ((manifest, of_manifest), (chunk, of_chunk)):
        async with published.replaced(store, {key: damage(published.bodies[key])}):
            refused = await refusal(published, puller)
        assert isinstance(refused, DamagedChunk | MissingChunk | InvalidManifest | ObjectNotFound)
        assert re.search(reason, str(refused)), refused
    await pulls_newest(published, puller)


async def test_what_a_dead_process_left_of_chunks_that_nobody_wants_is_removed(
    published: Published, puller: WeightPuller, tmp_path: Path
) -> None:
    spool = tmp_path / "pool" / "spool"
    for suffix in ("", ".part", ".whole", ".whole.partial", ".whole.ranges"):
        (spool / f"{hashlib.sha256(suffix.encode()).hexdigest()}{suffix}").write_bytes(b"x")
    await pulls_newest(published, puller)
    assert not [path.name for path in spool.iterdir() if len(path.name) >= 64]
