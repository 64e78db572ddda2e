"""Some versions of a policy in a real store, whose every object is known by heart, so that it can be damaged and
restored.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.support.weights.states import TrainedState
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.layout import StateLayout
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.chunk_writer import CHUNK_BYTES
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.keys import latest_key
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.manifest import Chunk, WeightManifest, open_sealed
from trimtab.weights.store.route import cheapest_route
from trimtab.weights.upkeep import UpkeepRules

D = 60.0
POLICY = "p"
NEWEST = 7
_RULES = UpkeepRules(
    anchor_every=5,
    fold_every=3,
    collection=CollectionRules(keep_versions=50, lease_ttl_s=600.0, grace_s=600.0),
    collect_every_s=3600.0,
)


@dataclass(frozen=True)
class Published:
    """`bodies` are all objects by key; `old_copy` is what a pool holds that pulled version 0, `old_pointer` is what it
    read then.
    """

    settings: ObjectStoreSettings
    signer: Signer
    layout: StateLayout
    bodies: Mapping[str, bytes]
    latest: Latest
    manifests: Mapping[Entry, WeightManifest]
    old_copy: Path
    old_pointer: bytes

    @property
    def verifier(self) -> Verifier:
        return Verifier([self.signer.public_text])

    @property
    def chunks(self) -> dict[str, Chunk]:
        return {key: chunk for manifest in self.manifests.values() for key, chunk in manifest.chunk_keys().items()}

    def entry(self, base: int | None, target: int) -> Entry:
        ends = (base, target)
        return next(e for e in self.latest.catalogue if (e.base.version if e.base else None, e.target.version) == ends)

    def route(self) -> tuple[Entry, ...]:
        """From the old copy to the newest version."""
        start = self.entry(None, 0).target
        return cheapest_route(self.latest, start).entries

    def on_route(self) -> dict[str, Chunk | Entry]:
        """Every object that a pool with the old copy reads, besides the pointer."""
        chunks = {key: chunk for entry in self.route() for key, chunk in self.manifests[entry].chunk_keys().items()}
        return {**chunks, **{entry.key(POLICY): entry for entry in self.route()}}

    def forged(self, entry: Entry, *, instead_of: Entry) -> bytes:
        """The pointer with another entry: everybody who may write to the bucket can make one."""
        catalogue = tuple(entry if present == instead_of else present for present in self.latest.catalogue)
        return msgspec.json.encode(msgspec.structs.replace(self.latest, catalogue=catalogue))

    def weights(self, version: int, *, run: int = 0) -> bytes:
        return TrainedState(version, run, self.layout).file()

    async def puller(self, store: ObjectStore, folder: Path) -> WeightPuller:
        """One that holds version 0."""
        shutil.copytree(self.old_copy, folder)
        return await _opened(store, self.verifier, folder)

    @asynccontextmanager
    async def replaced(self, store: ObjectStore, objects: Mapping[str, bytes | None]) -> AsyncIterator[None]:
        """Other bodies under these keys, with digests that fit them, so that only the reader's own checks can tell;
        None deletes. Afterwards everything is as it was.
        """
        for key, body in objects.items():
            await (store.delete(key) if body is None else store.put(key, body))
        try:
            yield
        finally:
            for key in objects:
                await (store.put(key, self.bodies[key]) if key in self.bodies else store.delete(key))


async def publish_versions(
    nats: NatsSettings,
    settings: ObjectStoreSettings,
    folder: Path,
    layout: StateLayout,
    *,
    run: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> Published:
    """Versions 0 to 7, with anchors of 0 and 5 and folds of every three."""
    name = f"w{uuid.uuid4().hex[:12]}"
    settings = settings.model_copy(update={"prefix": f"t/{name}"})
    signer = Signer.generate(entropy=lambda count: bytes(range(count)))
    verifier = Verifier([signer.public_text])
    async with await Bus.connect(nats, name="test") as bus, ObjectStore(settings) as store:
        publisher = await WeightPublisher.open(
            store, await KeyValue.declare(bus, JobTopology("t", name).weights, deadline_s=D), job="j", policy=POLICY,
            signer=signer, rules=_RULES, folder=folder / "scratch", clock=lambda: 1.0, deadline_s=D,
            chunk_bytes=chunk_bytes,
        )  # fmt: skip
        old_pointer = b""
        for version in range(NEWEST + 1):
            captured = publisher.capture(TrainedState(version, run, layout))
            await publisher.publish(version, captured, deadline_s=D)
            await publisher.flush()
            if version == 0:
                puller = await _opened(store, verifier, folder / "old")
                await puller.pull(deadline_s=D)
                await puller.close()
                old_pointer = (await store.get(latest_key(POLICY), max_bytes=1 << 20)).body
        await publisher.close()
        bodies = {
            info.key: (await store.get(info.key, max_bytes=1 << 30)).body async for info in store.scan("weights/")
        }
    latest = msgspec.json.decode(bodies[latest_key(POLICY)], type=Latest)
    manifests = {
        entry: open_sealed(bodies[entry.key(POLICY)], verifier=verifier, policy=POLICY, entry=entry)
        for entry in latest.catalogue
    }
    return Published(settings, signer, layout, bodies, latest, manifests, folder / "old", old_pointer)


async def _opened(store: ObjectStore, verifier: Verifier, folder: Path) -> WeightPuller:
    puller = WeightPuller(
        store, POLICY, verifier, folder=folder / "copy", spool=folder / "spool", member="pool", threads=2
    )
    await puller.open()
    return puller
