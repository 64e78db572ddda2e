"""Someone who can write to the bucket but has no key cannot make a pool take wrong weights: neither forged objects nor
genuine ones in a place that is not theirs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.weights.published import POLICY, D, Published, publish_versions
from tests.support.weights.small_policy import content, pulls_newest, refusal
from tests.support.weights.small_policy import published as published
from tests.support.weights.small_policy import puller as puller
from tests.support.weights.small_policy import store as store
from tests.support.weights.states import TrainedState
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.signing import Signer
from trimtab.weights.assembly import ChunkFiles, Stage, WrongWeights, rebuilt
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.chunk_fetch import DamagedChunk
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.keys import latest_key
from trimtab.weights.store.latest import PointerRolledBack
from trimtab.weights.store.manifest import Chunk, InvalidManifest, WeightManifest, seal
from trimtab.weights.store.position import Position


async def test_chunks_in_one_anothers_place_are_refused(
    published: Published, store: ObjectStore, puller: WeightPuller
) -> None:
    one, other = [key for key, victim in published.on_route().items() if isinstance(victim, Chunk)][:2]
    swapped: dict[str, bytes | None] = {one: published.bodies[other], other: published.bodies[one]}
    async with published.replaced(store, swapped):
        refused = await refusal(published, puller)
    assert isinstance(refused, DamagedChunk)
    await pulls_newest(published, puller)


async def test_an_old_manifest_under_a_new_name_is_refused(
    published: Published, store: ObjectStore, puller: WeightPuller
) -> None:
    last, old = published.route()[-1], published.entry(0, 1)
    async with published.replaced(store, {last.key(POLICY): published.bodies[old.key(POLICY)]}):
        refused = await refusal(published, puller)
    assert isinstance(refused, InvalidManifest)
    assert "damaged or replaced" in str(refused)
    await pulls_newest(published, puller)


Forgery = Callable[[Published, Entry, WeightManifest], tuple[Entry, bytes]]


def _replayed(published: Published, entry: Entry, _: WeightManifest) -> tuple[Entry, bytes]:
    body = published.bodies[published.entry(0, 1).key(POLICY)]
    return msgspec.structs.replace(entry, manifest=hashlib.sha256(body).hexdigest()), body


def _rebased(published: Published, entry: Entry, manifest: WeightManifest) -> tuple[Entry, bytes]:
    """The genuine manifest, said to begin where the pool is."""
    return msgspec.structs.replace(entry, base=Position(1, 0)), published.bodies[entry.key(POLICY)]


def _sealed(manifest: WeightManifest, signer: Signer) -> tuple[Entry, bytes]:
    body = seal(manifest, signer)
    return manifest.entry(body), body


def _foreign(_: Published, entry: Entry, manifest: WeightManifest) -> tuple[Entry, bytes]:
    return _sealed(manifest, Signer.generate())


def _of_another_policy(published: Published, entry: Entry, manifest: WeightManifest) -> tuple[Entry, bytes]:
    return _sealed(msgspec.structs.replace(manifest, policy="q"), published.signer)


def _of_other_weights(published: Published, entry: Entry, manifest: WeightManifest) -> tuple[Entry, bytes]:
    """Signed by the trainer, as by one that has mixed up its states."""
    return _sealed(msgspec.structs.replace(manifest, base_root="0" * 64), published.signer)


def _of_another_root(published: Published, entry: Entry, manifest: WeightManifest) -> tuple[Entry, bytes]:
    return _sealed(msgspec.structs.replace(manifest, root="0" * 64), published.signer)


def _cheaper(published: Published, entry: Entry, _: WeightManifest) -> tuple[Entry, bytes]:
    return msgspec.structs.replace(entry, bytes=1), published.bodies[entry.key(POLICY)]


@pytest.mark.parametrize(
    ("forgery", "reason"),
    [
        (_replayed, "reordered or replayed"),
        (_rebased, "it begins at version .*its entry at version 0 of epoch 1: reordered or replayed"),
        (_foreign, "its signature is wrong: not signed by any of the 1 trusted keys"),
        (_of_another_policy, "it is of policy q, not p"),
        (_of_other_weights, "builds on other weights than version .* that is held"),
        (_of_another_root, "do not give its root"),
        (_cheaper, "bytes to fetch, its entry says 1"),
    ],
)
async def test_forged_catalogues_are_refused(
    published: Published, store: ObjectStore, puller: WeightPuller, forgery: Forgery, reason: str
) -> None:
    """By someone who may write to the bucket, in the place of the last delta of the route."""
    last = published.route()[-1]
    entry, body = forgery(published, last, published.manifests[last])
    pointer = published.forged(entry, instead_of=last)
    async with published.replaced(store, {entry.key(POLICY): body, latest_key(POLICY): pointer}):
        refused = await refusal(published, puller)
    assert isinstance(refused, InvalidManifest | WrongWeights)
    assert re.search(reason, str(refused)), refused
    await pulls_newest(published, puller)


async def test_an_old_pointer_is_refused_by_whoever_has_seen_a_newer_one(
    published: Published, store: ObjectStore, puller: WeightPuller
) -> None:
    """A pool that starts with it cannot tell, and gets the version that was newest then."""
    await pulls_newest(published, puller)
    async with published.replaced(store, {latest_key(POLICY): published.old_pointer}):
        with pytest.raises(PointerRolledBack, match="went back from .* someone replays an old pointer"):
            await puller.pull(deadline_s=D)
    await pulls_newest(published, puller)


async def test_a_delta_is_not_applied_to_other_weights_of_the_same_number(
    published: Published, store: ObjectStore, nats_settings: NatsSettings, tmp_path: Path
) -> None:
    """The pool was last used with another run: it holds a version 0 of epoch 1 as well."""
    other = await publish_versions(nats_settings, published.settings, tmp_path, published.layout, run=9)
    puller = await other.puller(store, tmp_path / "pool")
    with pytest.raises(WrongWeights, match="builds on other weights than version 0 of epoch 1 that is held"):
        await puller.pull(deadline_s=D)
    assert content(puller) == published.weights(0, run=9)
    await puller.close()


def test_a_delta_decoded_on_another_version_is_noticed(published: Published, tmp_path: Path) -> None:
    manifest = published.manifests[published.entry(1, 2)]
    other = TrainedState(0, layout=published.layout).content()
    for key, chunk in manifest.chunk_keys().items():
        (tmp_path / chunk.sha256).write_bytes(published.bodies[key])
    files = ChunkFiles({chunk.sha256: tmp_path / chunk.sha256 for chunk in manifest.chunks})
    for piece in manifest.pieces:
        block = published.layout.blocks[piece.block]
        with pytest.raises(WrongWeights, match="does not decode|decodes to something else than promised"):
            rebuilt(block, other[block.start : block.end], [Stage(manifest, piece)], files)
