"""A trainer that resumes from an older checkpoint leaves no pool behind: whatever it publishes can be pulled."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.support.weights.states import TrainedState
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.position import Position
from trimtab.weights.upkeep import UpkeepRules

D = 60.0
RULES = UpkeepRules(
    anchor_every=4,
    fold_every=None,
    collection=CollectionRules(keep_versions=4, lease_ttl_s=600.0, grace_s=600.0),
    collect_every_s=0.0,
)


async def test_a_version_whose_anchor_was_collected_is_not_built_upon(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    """Version 3 is still in the catalogue when the second trainer resumes from it, but only the anchor of version 4 is:
    a delta from there could be reached neither by joiners nor by those who hold version 6.
    """
    name = f"w{uuid.uuid4().hex[:12]}"
    settings = object_store_settings.model_copy(update={"prefix": f"t/{name}"})
    signer = Signer.generate()
    verifier = Verifier([signer.public_text])
    async with await Bus.connect(nats_settings, name="test") as bus, ObjectStore(settings) as store:
        pointers = await KeyValue.declare(bus, JobTopology("t", name).weights, deadline_s=D)

        async def publish(*versions: int) -> None:
            publisher = await WeightPublisher.open(
                store, pointers, job="j", policy="p", signer=signer, rules=RULES, folder=tmp_path / "scratch",
                clock=lambda: 1.0, deadline_s=D,
            )  # fmt: skip
            for version in versions:
                captured = publisher.capture(TrainedState(version))
                await publisher.publish(version, captured, deadline_s=D)
                await publisher.flush()
            await publisher.close()

        async def pulled(member: str) -> Position:
            folder = tmp_path / member
            puller = WeightPuller(store, "p", verifier, folder=folder / "copy", spool=folder / "spool", member=member)
            await puller.open()
            position = await puller.pull(deadline_s=D)
            await puller.close()
            assert (folder / "copy" / "model.safetensors").read_bytes() == TrainedState(position.version).file()
            return position

        await publish(*range(7))
        assert await pulled("pool") == Position(1, 6)
        latest = await LatestPointer(store, "p").read(deadline_s=D)
        assert latest is not None
        assert {entry.target.version for entry in latest.catalogue if entry.base is None} == {4}
        assert min(entry.target.version for entry in latest.catalogue) == 3
        await publish(3)
        for member in ("pool", "joiner"):
            assert await pulled(member) == Position(2, 3)
