"""How a trainer publishes its policy's weights: with a publisher as the manifest and the pod's settings describe it,
and beside the next step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path

from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.selftest import prove_store
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import Settings
from trimtab.fabric.signing import Signer
from trimtab.trainer.background import Background, Outbox, persistently
from trimtab.weights.baseline import Captured, WeightChanges, WeightShare, WeightSource
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.publishing_group import PublishingGroup
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import AskBest, UpkeepRules

_LEASE_TTL_S = 900.0
_COLLECTION_GRACE_S = 600.0
# In fine-tuning a delta is a hundredth of a copy, and neither is ever reached. Where every weight moves in every step,
# they bound what the store has and what a joiner fetches.
_ANCHOR_AFTER_COPIES = 4
_KEPT_COPIES = 8
_OPEN_DEADLINE_S = 60.0
# The first version of a large model is uploaded whole, and only the pools wait for it.
_PUBLISH_DEADLINE_S = 1800.0


async def open_publisher(
    store: ObjectStore,
    pointers: KeyValue,
    policy: Policy,
    settings: Settings,
    *,
    pools: Sequence[JobPool],
    attempt: int,
    scratch: Path,
    stack: AsyncExitStack,
    group: PublishingGroup | None = None,
    ask_best: AskBest | None = None,
) -> WeightPublisher:
    """The process that opens it becomes the policy's trainer: an earlier one can publish nothing any more. Of a trainer
    with several ranks all open it, with the group in which they publish. With `ask_best` the best versions are kept.
    """
    if group is None or group.signs:
        # A store that ignores conditional writes would let two trainers interleave unnoticed.
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
            anchor_after_copies=_ANCHOR_AFTER_COPIES,
            fold_every=publish.fold_every_versions,
            collection=CollectionRules(
                keep_versions=publish.keep_versions,
                lease_ttl_s=_LEASE_TTL_S,
                grace_s=_COLLECTION_GRACE_S,
                copies=_KEPT_COPIES,
            ),
        ),
        folder=scratch,
        codec=codec_for(publish.codec, pools),
        clock=time.time,
        deadline_s=_OPEN_DEADLINE_S,
        group=group,
        # An attempt's number is never used again, whatever becomes of the store.
        epoch_at_least=attempt + 1,
        ask_best=ask_best,
    )
    stack.push_async_callback(publisher.close)
    return publisher


def codec_for(wanted: str, pools: Sequence[JobPool]) -> Codec:
    """What brings a version to the engines soonest: within a cluster, decoding takes longer than fetching, and in
    another one it is the other way round.
    """
    if wanted == "auto" and all(pool.cluster is None for pool in pools):
        return Codec.FAST
    return Codec(wanted)


class WeightOutbox:
    """One version under way at a time. The next step only reads the weights until its optimiser changes them, so they
    are compared with what was published last while the next rows are computed on. Training waits only if that takes
    longer than both passes over the rows; on a GPU, where they are compared in milliseconds, not at all.
    """

    def __init__(self, publisher: WeightPublisher, background: Background) -> None:
        self._publisher = publisher
        self._background = background
        self._versions = Outbox(background)
        self._reading: Future[Captured] | None = None
        self.last_publish_s: float | None = None
        """From the last version's capture to its announcement."""

    @property
    def busy(self) -> bool:
        """Raises what the last version failed with."""
        return self._versions.busy

    def send(self, version: int, weights: WeightSource | WeightShare | WeightChanges) -> None:
        """Only when it is not busy. The weights must stay as they are until `wait_until_read` returns, unless what
        changed in them is known already, or they are a copy.
        """
        reading = self._background.start(asyncio.to_thread(self._publisher.capture, weights))
        self._reading = None if isinstance(weights, WeightChanges | WeightShare) else reading
        self._versions.send(self._publish(version, reading))

    def wait_until_read(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.result()

    def flush(self) -> None:
        """Wait until it is out."""
        self._versions.flush()

    async def _publish(self, version: int, reading: Future[Captured]) -> None:
        began = time.monotonic()
        captured = await asyncio.wrap_future(reading)
        await persistently(
            lambda: self._publisher.publish(version, captured, deadline_s=_PUBLISH_DEADLINE_S),
            what=f"weights of version {version}",
            deadline_s=_PUBLISH_DEADLINE_S,
        )
        self.last_publish_s = time.monotonic() - began
