"""Publishes versions: objects first, then the manifest, then the pointer: what a pool can see is always whole."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable

import structlog

from trimtab.fabric.bus.errors import BusConflict, BusNotFound, BusTimeout
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError, PreconditionFailed
from trimtab.fabric.objects.upload import upload
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.latest import Latest, LatestPointer, SupersededTrainer
from trimtab.weights.manifest import FORMAT, WeightFile, WeightManifest, encode_manifest

_log = structlog.get_logger(__name__)
_CONFLICT_DELAY_S = 0.05
_FILE_NAME = "model.safetensors"


class WeightPublisher:
    """The publishing end of one policy. Made by `open`, which claims the epoch."""

    def __init__(
        self, store: ObjectStore, pointers: KeyValue, pointer: LatestPointer, *, job: str, policy: str, epoch: int,
        keep_versions: int, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.epoch = epoch
        self._store = store
        self._pointers = pointers
        self._pointer = pointer
        self._job = job
        self._policy = policy
        self._keep_versions = keep_versions
        self._clock = clock
        self._published: deque[tuple[str, ...]] = deque()

    @classmethod
    async def open(
        cls, store: ObjectStore, pointers: KeyValue, *, job: str, policy: str, keep_versions: int,
        clock: Callable[[], float], deadline_s: float,
    ) -> WeightPublisher:  # fmt: skip
        pointer = LatestPointer(store, policy)
        epoch = await pointer.claim_epoch(deadline_s=deadline_s)
        publisher = cls(
            store, pointers, pointer, job=job, policy=policy, epoch=epoch, keep_versions=keep_versions, clock=clock
        )
        # What earlier trainers left goes when this one has brought as many versions as are kept.
        leftovers = [info.key async for info in store.scan(f"weights/{policy}/epochs/")]
        publisher._published.append(tuple(leftovers))
        return publisher

    async def publish(self, version: int, weights: bytes, *, deadline_s: float) -> WeightPointer:
        """`weights` is a safetensors file. Raises SupersededTrainer when another trainer has taken over.

        After any other error it can be repeated: whatever of it has happened is recognised.
        """
        # Objects are named by their content, under the epoch: no other trainer can delete what we rely on.
        sha256 = hashlib.sha256(weights).hexdigest()
        folder = f"weights/{self._policy}/epochs/{self.epoch:08d}"
        key = f"{folder}/objects/{sha256}.safetensors"
        with contextlib.suppress(PreconditionFailed):  # the same content is there already
            await upload(self._store, key, weights, if_absent=True, deadline_s=deadline_s)
        file = WeightFile(name=_FILE_NAME, key=key, size=len(weights), sha256=sha256)
        manifest = WeightManifest(format=FORMAT, policy=self._policy, version=version, epoch=self.epoch, files=(file,))
        body, manifest_digest = encode_manifest(manifest)
        manifest_key = f"{folder}/manifests/{version:012d}.json"
        await self._store.put(manifest_key, body, deadline_s=deadline_s)
        await self._pointer.advance(
            Latest(epoch=self.epoch, version=version, manifest_key=manifest_key, manifest_digest=manifest_digest),
            deadline_s=deadline_s,
        )
        pointer = WeightPointer(
            job=self._job,
            policy=self._policy,
            version=version,
            epoch=self.epoch,
            manifest_key=manifest_key,
            manifest_digest=manifest_digest,
            size_bytes=len(weights),
            published_at=self._clock(),
        )
        await self._announce(pointer, deadline_s=deadline_s)
        await self._forget_old((manifest_key, key), deadline_s=deadline_s)
        return pointer

    async def _announce(self, pointer: WeightPointer, *, deadline_s: float) -> None:
        """Tell the pools. Compare-and-swap here too: between our swap in the store and this line we may have lost."""
        value = encode(pointer)
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    if await self._swapped(value, deadline_s=deadline_s):
                        return
                    await asyncio.sleep(_CONFLICT_DELAY_S)
        except TimeoutError:
            raise BusTimeout(f"could not announce version {pointer.version} within {deadline_s:.3g} s") from None

    async def _swapped(self, value: bytes, *, deadline_s: float) -> bool:
        try:
            present = await self._pointers.get(self._policy, deadline_s=deadline_s)
        except BusNotFound:
            present = None
        try:
            if present is None:
                await self._pointers.create(self._policy, value, deadline_s=deadline_s)
                return True
            told = decode(present.value, WeightPointer).epoch
            if told > self.epoch:
                raise SupersededTrainer(f"epoch {self.epoch} of {self._policy} was superseded by {told}")
            await self._pointers.update(self._policy, value, revision=present.revision, deadline_s=deadline_s)
        except BusConflict:
            return False
        return True

    async def _forget_old(self, keys: tuple[str, ...], *, deadline_s: float) -> None:
        """Deleting is tidiness: what cannot be deleted now is tried again with the next version."""
        if not self._published or keys != self._published[-1]:
            self._published.append(keys)
        while len(self._published) > self._keep_versions:
            kept = {key for later in list(self._published)[1:] for key in later}
            try:
                for key in self._published[0]:
                    if key not in kept:
                        await self._store.delete(key, deadline_s=deadline_s)
            except ObjectStoreError as error:
                _log.warning("old_weights_not_deleted", policy=self._policy, error=str(error))
                return
            self._published.popleft()
