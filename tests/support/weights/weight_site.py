"""A part of the store and a bucket that no other test uses, and what tests of weights open there."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.weights.states import TrainedState
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import NO_LIMITS, PullLimits, WeightPuller
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.latest import Latest, LatestPointer
from trimtab.weights.upkeep import AskBest, UpkeepRules

D = 60.0
SIGNER = Signer.generate()
RULES = UpkeepRules(
    anchor_every=1000,
    fold_every=None,
    collection=CollectionRules(keep_versions=50, lease_ttl_s=600.0, grace_s=600.0),
)


@dataclass(frozen=True)
class WeightSite:
    """A part of the store and a bucket that no other test uses, and whatever a test opens there."""

    settings: ObjectStoreSettings
    store: ObjectStore
    pointers: KeyValue
    folder: Path
    closing: AsyncExitStack

    async def publisher(
        self, *, rules: UpkeepRules = RULES, signer: Signer = SIGNER, scratch: Path | None = None,
        ask_best: AskBest | None = None,
    ) -> WeightPublisher:  # fmt: skip
        publisher = await WeightPublisher.open(
            self.store, self.pointers, job="j", policy="p", signer=signer, rules=rules, clock=lambda: 1.0,
            folder=scratch or self.folder / uuid.uuid4().hex, codec=Codec.AUTO, deadline_s=D,
            ask_best=ask_best,
        )  # fmt: skip
        self.closing.push_async_callback(publisher.close)
        return publisher

    async def publish(self, publisher: WeightPublisher, *versions: int, run: int = 0) -> WeightPointer:
        for version in versions:
            captured = publisher.capture(TrainedState(version, run))
            pointer = await publisher.publish(version, captured, deadline_s=D)
        return pointer

    async def puller(
        self, name: str = "pulled", *, limits: PullLimits = NO_LIMITS, store: ObjectStore | None = None
    ) -> WeightPuller:
        folder = self.folder / name
        puller = WeightPuller(
            store or self.store, "p", Verifier([SIGNER.public_text]), folder=folder / "copy", spool=folder / "spool",
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


def content(puller: WeightPuller) -> bytes:
    return (puller.folder / "model.safetensors").read_bytes()
