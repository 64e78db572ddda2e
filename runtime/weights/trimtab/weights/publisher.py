"""Publishes versions: objects first, then the manifest, then the pointer: what a pool can see is always whole."""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable

from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import PreconditionFailed
from trimtab.fabric.objects.upload import upload
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.latest import Latest, LatestPointer
from trimtab.weights.manifest import FORMAT, WeightFile, WeightManifest, encode_manifest

_FILE_NAME = "model.safetensors"


class WeightPublisher:
    """The publishing end of one policy. Made by `open`, which claims the epoch."""

    def __init__(
        self, store: ObjectStore, pointers: KeyValue, pointer: LatestPointer, *, job: str, policy: str, epoch: int,
        keep_versions: int, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._pointers = pointers
        self._pointer = pointer
        self._job = job
        self._policy = policy
        self._epoch = epoch
        self._keep_versions = keep_versions
        self._clock = clock
        self._published: deque[tuple[str, str]] = deque()

    @classmethod
    async def open(
        cls, store: ObjectStore, pointers: KeyValue, *, job: str, policy: str, keep_versions: int,
        clock: Callable[[], float], deadline_s: float,
    ) -> WeightPublisher:  # fmt: skip
        pointer = LatestPointer(store, policy)
        epoch = await pointer.claim_epoch(deadline_s=deadline_s)
        return cls(
            store, pointers, pointer, job=job, policy=policy, epoch=epoch, keep_versions=keep_versions, clock=clock
        )

    async def publish(self, version: int, weights: bytes, *, deadline_s: float) -> WeightPointer:
        """`weights` is a safetensors file. Raises SupersededTrainer when another trainer has taken over."""
        sha256 = hashlib.sha256(weights).hexdigest()
        key = f"weights/{self._policy}/objects/{sha256}.safetensors"
        with contextlib.suppress(PreconditionFailed):  # the same content is there already
            await upload(self._store, key, weights, if_absent=True, deadline_s=deadline_s)
        file = WeightFile(name=_FILE_NAME, key=key, size=len(weights), sha256=sha256)
        manifest = WeightManifest(format=FORMAT, policy=self._policy, version=version, epoch=self._epoch, files=(file,))
        body, manifest_digest = encode_manifest(manifest)
        manifest_key = f"weights/{self._policy}/manifests/{self._epoch:08d}-{version:012d}.json"
        await self._store.put(manifest_key, body, deadline_s=deadline_s)
        await self._pointer.advance(
            Latest(epoch=self._epoch, version=version, manifest_key=manifest_key, manifest_digest=manifest_digest),
            deadline_s=deadline_s,
        )
        pointer = WeightPointer(
            job=self._job,
            policy=self._policy,
            version=version,
            epoch=self._epoch,
            manifest_key=manifest_key,
            manifest_digest=manifest_digest,
            size_bytes=len(weights),
            published_at=self._clock(),
        )
        await self._pointers.put(self._policy, encode(pointer), deadline_s=deadline_s)
        await self._forget_old(manifest_key, key, deadline_s=deadline_s)
        return pointer

    async def _forget_old(self, manifest_key: str, key: str, *, deadline_s: float) -> None:
        self._published.append((manifest_key, key))
        while len(self._published) > self._keep_versions:
            old_manifest, old_key = self._published.popleft()
            await self._store.delete(old_manifest, deadline_s=deadline_s)
            if all(old_key != kept for _, kept in self._published):
                await self._store.delete(old_key, deadline_s=deadline_s)
