"""Proof, at start-up, that the store keeps the promises the weight store and the ledger rest on. Some S3 servers accept
conditional headers and wrong checksums and ignore them; with such a one two trainers would overwrite each other in
silence.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from trimtab.fabric.objects.checksums import crc32_header
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.errors import ChecksumMismatch, PreconditionFailed, StoreRefused, StoreUnfit

IF_NONE_MATCH = "put-if-absent (If-None-Match: *)"
IF_MATCH = "compare-and-swap (If-Match: etag)"
CHECKSUMS = "refusal of wrong checksums (x-amz-checksum-crc32)"


async def prove_store(store: ObjectStore, *, deadline_s: float = 30.0) -> None:
    """Writes, fights over and removes one small object below the prefix; StoreUnfit says what the store does not
    honour.
    """
    key = f".selftest/{uuid.uuid4().hex}"
    try:
        first = await put_if_absent(store, key, b"first", deadline_s=deadline_s)
        missing = []
        if not await _is_refused(lambda: put_if_absent(store, key, b"second", deadline_s=deadline_s)):
            missing.append(IF_NONE_MATCH)
        present = await store.head(key, deadline_s=deadline_s)
        stale = '"00000000000000000000000000000000"'
        swapped = await compare_and_swap(store, key, b"third", etag=present.etag, deadline_s=deadline_s)
        old = first.etag if first.etag != swapped.etag else stale
        if not await _is_refused(lambda: compare_and_swap(store, key, b"fourth", etag=old, deadline_s=deadline_s)):
            missing.append(IF_MATCH)
        if not await _refuses_wrong_checksum(store, key, deadline_s=deadline_s):
            missing.append(CHECKSUMS)
    finally:
        await store.delete(key, deadline_s=deadline_s)
    if missing:
        raise StoreUnfit(
            f"{store!r} does not honour {', '.join(missing)}; use a store that does (AWS S3, SeaweedFS, MinIO)",
            missing=missing,
        )


async def _is_refused(write: Callable[[], Awaitable[object]]) -> bool:
    try:
        await write()
    except PreconditionFailed:
        return True
    return False


async def _refuses_wrong_checksum(store: ObjectStore, key: str, *, deadline_s: float) -> bool:
    def write_damaged() -> object:
        return store.s3.put_object(
            Bucket=store.bucket,
            Key=store.full_key(key),
            Body=b"not what the checksum says",
            ChecksumCRC32=crc32_header(b"what the checksum says"),
        )

    try:
        await store.call(write_damaged, doing=f"self-test of {store.where(key)}", deadline_s=deadline_s)
    except (ChecksumMismatch, StoreRefused):
        return True
    return False
