"""Writes that happen only if no other writer was faster: put-if-absent and compare-and-swap.

A conditional write whose answer is lost meets itself when it is repeated. Every write therefore carries an id in its
metadata, and a lost condition after a repeat is checked against it. ETags are digests of the content: a swap to the
content that is there already is not noticed by others, so let contended objects carry something unique.
"""

from __future__ import annotations

from typing import Any

from trimtab.fabric.objects.checksums import digest_of
from trimtab.fabric.objects.client import DEFAULT_DEADLINE_S, ObjectInfo, ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, PreconditionFailed


async def put_if_absent(
    store: ObjectStore, key: str, body: bytes, *, deadline_s: float = DEFAULT_DEADLINE_S
) -> ObjectInfo:
    """Creates the object; PreconditionFailed when there is one."""
    return await _write_if(store, key, body, condition={"IfNoneMatch": "*"}, deadline_s=deadline_s)


async def compare_and_swap(
    store: ObjectStore, key: str, body: bytes, *, etag: str, deadline_s: float = DEFAULT_DEADLINE_S
) -> ObjectInfo:
    """Replaces the version with `etag`; PreconditionFailed when it is another one or gone."""
    try:
        return await _write_if(store, key, body, condition={"IfMatch": etag}, deadline_s=deadline_s)
    except ObjectNotFound as error:
        # AWS answers 404 where SeaweedFS answers 412.
        raise PreconditionFailed(str(error)) from None


async def own_write(store: ObjectStore, key: str, write_id: str, *, deadline_s: float) -> ObjectInfo | None:
    """What is under the key now, if it is the write with this id."""
    try:
        present = await store.head(key, deadline_s=deadline_s)
    except ObjectNotFound:
        return None
    return present if present.write_id == write_id else None


async def _write_if(
    store: ObjectStore, key: str, body: bytes, *, condition: dict[str, Any], deadline_s: float
) -> ObjectInfo:
    digest, write_id = digest_of(body), store.new_write_id()
    repeats = 0

    def count_repeat() -> None:
        nonlocal repeats
        repeats += 1

    try:
        return await store.call(
            lambda: store.put_once(key, body, digest=digest, write_id=write_id, **condition),
            doing=f"conditional put {store.where(key)}",
            deadline_s=deadline_s,
            on_repeat=count_repeat,
        )
    except PreconditionFailed:
        own = await own_write(store, key, write_id, deadline_s=deadline_s) if repeats else None
        if own is None:
            raise
        return own
