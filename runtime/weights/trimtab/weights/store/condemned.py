"""What garbage collection will delete next, and since when: an object is named here one run before it goes."""

from __future__ import annotations

import msgspec

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.errors import ObjectNotFound, ObjectTooLarge, PreconditionFailed
from trimtab.fabric.wire.values import UnixSeconds
from trimtab.weights.store.keys import condemned_key

MAX_CONDEMNED = 20_000
"""How many objects are named at most; the others wait for a later run."""
_MAX_BYTES = 16 << 20


class _Record(msgspec.Struct, frozen=True):
    objects: dict[str, UnixSeconds]
    writer: str


class CondemnedList:
    """One policy's list. `read` comes first; `write` replaces what was read and gives way to another collector's."""

    def __init__(self, store: ObjectStore, policy: str) -> None:
        self._store = store
        self._key = condemned_key(policy)
        self._etag: str | None = None

    async def read(self, *, deadline_s: float) -> dict[str, float]:
        """Keys, and when by the store's clock they were condemned. A list that cannot be read condemns nothing."""
        try:
            stored = await self._store.get(self._key, max_bytes=_MAX_BYTES, deadline_s=deadline_s)
        except ObjectNotFound:
            self._etag = None
            return {}
        except ObjectTooLarge:
            self._etag = (await self._store.head(self._key, deadline_s=deadline_s)).etag
            return {}
        self._etag = stored.info.etag
        try:
            return msgspec.json.decode(stored.body, type=_Record).objects
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}

    async def write(self, objects: dict[str, float], *, deadline_s: float) -> bool:
        """Whether it was written; not when another collector has written since."""
        named = dict(list(objects.items())[:MAX_CONDEMNED])
        body = msgspec.json.encode(_Record(objects=named, writer=self._store.new_write_id()))
        try:
            if self._etag is None:
                await put_if_absent(self._store, self._key, body, deadline_s=deadline_s)
            else:
                await compare_and_swap(self._store, self._key, body, etag=self._etag, deadline_s=deadline_s)
        except PreconditionFailed:
            return False
        return True
