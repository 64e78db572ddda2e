"""A policy's weights in a real bucket: published with the store's own parts, with contents that follow from names."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import StateLayout
from trimtab.weights.store.chunk_writer import ChunkWriter
from trimtab.weights.store.collection import Collected, CollectionRules, collect
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight, Publication
from trimtab.weights.store.latest import Latest, LatestPointer
from trimtab.weights.store.manifest import FORMAT, WeightManifest
from trimtab.weights.store.manifests import ManifestReader, write_manifest
from trimtab.weights.store.position import Position

D = 60.0
POLICY = "p"
LAYOUT = StateLayout.of(dict.fromkeys("abc", ("BF16", (8 << 20,))))


def content(name: object, size: int) -> bytes:
    return random.Random(str(name)).randbytes(size)


def digests(position: Position) -> list[bytes]:
    return [hashlib.sha256(f"{position} {block.index}".encode()).digest()[:16] for block in LAYOUT.blocks]


def root(position: Position) -> str:
    return root_digest(LAYOUT, digests(position))


def bare_entry(target: Position, base: Position | None = None) -> Entry:
    """One with nothing behind it, for tests of the pointer alone."""
    manifest = hashlib.sha256(f"{target} {base}".encode()).hexdigest()
    return Entry(target=target, base=base, manifest=manifest, bytes=1000, root=root(target))


@dataclass
class Shelf:
    """One trainer's view; `other()` is that of another process."""

    store: ObjectStore
    signer: Signer = field(default_factory=Signer.generate)
    in_flight: InFlight = field(default_factory=InFlight)

    def __post_init__(self) -> None:
        self.pointer = LatestPointer(self.store, POLICY)
        self.manifests = ManifestReader(self.store, POLICY, Verifier([self.signer.public_text]))
        self.epoch = 0

    def other(self) -> Shelf:
        return Shelf(self.store, self.signer)

    async def claim(self) -> Shelf:
        self.epoch = (await self.pointer.claim_epoch(deadline_s=D)).epoch
        return self

    async def latest(self) -> Latest:
        latest = await LatestPointer(self.store, POLICY).read(deadline_s=D)
        assert latest is not None
        return latest

    async def keys(self, part: str = "") -> set[str]:
        return {info.key async for info in self.store.scan(f"weights/{POLICY}/") if part in info.key}

    async def stage(
        self, target: Position, base: Position | None, *, publication: Publication, size: int = 1000
    ) -> Entry:
        """Everything of a publication but the pointer."""
        async with ChunkWriter(self.store, POLICY, epoch=target.epoch, publication=publication, deadline_s=D) as writer:
            for block, digest in enumerate(digests(target)):
                before = None if base is None else digests(base)[block]
                await writer.add(block, "fast", content((target, base, block), size), base=before, digest=digest)
            chunks, pieces = await writer.finish()
        manifest = WeightManifest(
            format=FORMAT,
            policy=POLICY,
            target=target,
            base=base,
            base_root=None if base is None else root(base),
            root=root(target),
            layout=LAYOUT.digest,
            header=LAYOUT.header if base is None else None,
            chunks=chunks,
            pieces=pieces,
            created_at=1e9,
        )
        return await write_manifest(self.store, manifest, self.signer, publication=publication, deadline_s=D)

    async def publish(self, version: int, base: Position | None, *, size: int = 1000) -> Entry:
        with self.in_flight.publication() as publication:
            entry = await self.stage(Position(self.epoch, version), base, publication=publication, size=size)
            await self.pointer.update(lambda latest: latest.adding(entry), epoch=self.epoch, deadline_s=D)
        return entry

    async def publish_chain(self, count: int) -> list[Entry]:
        """An anchor of version 0 and single deltas from there."""
        anchor = await self.publish(0, None, size=100_000)
        steps = [await self.publish(version, Position(self.epoch, version - 1)) for version in range(1, count)]
        return [anchor, *steps]

    async def collect(self, *, keep: int = 1, lease_ttl_s: float = 600.0, grace_s: float = 0.0) -> Collected:
        return await collect(
            self.store,
            POLICY,
            epoch=self.epoch,
            rules=CollectionRules(keep_versions=keep, lease_ttl_s=lease_ttl_s, grace_s=grace_s),
            pointer=self.pointer,
            manifests=self.manifests,
            in_flight=self.in_flight,
            deadline_s=D,
        )

    async def objects_of(self, *entries: Entry) -> set[str]:
        keys = {entry.key(POLICY) for entry in entries}
        for entry in entries:
            keys.update((await self.manifests.read(entry, deadline_s=D)).chunk_keys())
        return keys
