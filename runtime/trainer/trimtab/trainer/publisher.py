"""How a trainer publishes its policy's weights: the publisher as the manifest and the pod's settings describe it."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

from trimtab.api.policy import Policy
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.selftest import prove_store
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import Settings
from trimtab.fabric.signing import Signer
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

_LEASE_TTL_S = 900.0
_COLLECTION_GRACE_S = 600.0
_OPEN_DEADLINE_S = 60.0


async def open_publisher(
    store: ObjectStore,
    pointers: KeyValue,
    policy: Policy,
    settings: Settings,
    *,
    scratch: Path,
    stack: AsyncExitStack,
) -> WeightPublisher:
    """Whoever opens it is the policy's trainer: one that came before can publish nothing any more."""
    # A store that ignores conditional writes would let two trainers interleave without anyone noticing.
    await prove_store(store)
    if settings.weights.signing_seed is None:
        raise JobMisconfigured("TRIMTAB_WEIGHTS__SIGNING_SEED: missing; pools load signed weights only")
    publish = policy.trainer.publish
    publisher = await WeightPublisher.open(
        store,
        pointers,
        job=settings.pod.job,
        policy=policy.name,
        signer=Signer(settings.weights.signing_seed.get_secret_value()),
        rules=UpkeepRules(
            anchor_every=publish.anchor_every_versions,
            fold_every=publish.fold_every_versions,
            collection=CollectionRules(
                keep_versions=publish.keep_versions, lease_ttl_s=_LEASE_TTL_S, grace_s=_COLLECTION_GRACE_S
            ),
        ),
        folder=scratch,
        codec=Codec(publish.codec),
        clock=time.time,
        deadline_s=_OPEN_DEADLINE_S,
    )
    stack.push_async_callback(publisher.close)
    return publisher
