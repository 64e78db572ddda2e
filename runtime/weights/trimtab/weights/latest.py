"""The pointer to a policy's newest weights in object storage, moved by compare-and-swap and fenced by epochs.

A trainer that starts claims the next epoch. Whoever holds an older one finds the pointer moved and has lost: two
trainers of one policy, one of which should be dead, can never interleave their versions.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.errors import ObjectNotFound, PreconditionFailed

_MAX_BYTES = 1 << 14
_CONFLICT_DELAY_S = 0.05


class SupersededTrainer(RuntimeError):
    """Another trainer of the same policy has claimed a newer epoch: this one must stop."""


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """Epoch and newest version; the version is None until an epoch has published."""

    epoch: Annotated[int, Meta(ge=0)]
    version: Annotated[int, Meta(ge=0)] | None = None
    manifest_key: str | None = None
    manifest_digest: str | None = None


class LatestPointer:
    """One policy's pointer; remembers what it wrote last, so that a swap by someone else is noticed."""

    def __init__(self, store: ObjectStore, policy: str) -> None:
        self._store = store
        self._key = f"weights/{policy}/latest.json"
        self._etag: str | None = None

    async def read(self, *, deadline_s: float) -> Latest | None:
        try:
            stored = await self._store.get(self._key, max_bytes=_MAX_BYTES, deadline_s=deadline_s)
        except ObjectNotFound:
            self._etag = None
            return None
        self._etag = stored.info.etag
        return msgspec.json.decode(stored.body, type=Latest)

    async def claim_epoch(self, *, deadline_s: float) -> int:
        """Become the writer by raising the epoch; of two that try at once, the second raises the first's."""
        while True:
            present = await self.read(deadline_s=deadline_s)
            claimed = Latest(epoch=1) if present is None else msgspec.structs.replace(present, epoch=present.epoch + 1)
            try:
                await self._write(claimed, deadline_s=deadline_s)
            except PreconditionFailed:
                await asyncio.sleep(_CONFLICT_DELAY_S)
            else:
                return claimed.epoch

    async def advance(self, latest: Latest, *, deadline_s: float) -> None:
        """Raises SupersededTrainer when a newer epoch was claimed."""
        try:
            await self._write(latest, deadline_s=deadline_s)
        except PreconditionFailed:
            # Either someone else moved it, or we did, in an attempt of which we only know that it timed out.
            present = await self.read(deadline_s=deadline_s)
            if present is None or present.epoch != latest.epoch:
                raise SupersededTrainer(
                    f"epoch {latest.epoch} of {self._key} was superseded by another trainer"
                ) from None
            if present != latest:
                await self._write(latest, deadline_s=deadline_s)

    async def _write(self, latest: Latest, *, deadline_s: float) -> None:
        body = msgspec.json.encode(latest)
        info: ObjectInfo
        if self._etag is None:
            info = await put_if_absent(self._store, self._key, body, deadline_s=deadline_s)
        else:
            info = await compare_and_swap(self._store, self._key, body, etag=self._etag, deadline_s=deadline_s)
        self._etag = info.etag
