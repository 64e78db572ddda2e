"""Reading a stretch of a large object into memory, for readers that have digests of the stretches they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreRefused, StoreUnavailable


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """`size` is of the whole object. Where that ends before the stretch does, the body is shorter."""

    body: bytearray
    size: int


async def read_range(store: ObjectStore, key: str, *, start: int, count: int, deadline_s: float) -> Stretch:
    """Raises ObjectNotFound."""
    target, where = store.full_key(key), store.where(key)

    def read() -> Stretch:
        try:
            answer = store.s3.get_object(Bucket=store.bucket, Key=target, Range=f"bytes={start}-{start + count - 1}")
        except ClientError as fault:
            if fault.response.get("Error", {}).get("Code") == "InvalidRange":
                whole = store.s3.head_object(Bucket=store.bucket, Key=target)
                return Stretch(body=bytearray(), size=whole["ContentLength"])
            raise
        if "ContentRange" not in answer or answer["ContentLength"] > count:
            raise StoreRefused(f"get {where}: the store does not answer with the range that it is asked for")
        body = bytearray(answer["ContentLength"])
        window = memoryview(body)
        with answer["Body"] as stream:
            readable: Any = stream  # its stubs have readinto wrong
            while window:
                read = readable.readinto(window)
                if not read:
                    raise StoreUnavailable(f"{where} ended {len(window)} bytes before the end of a range")
                window = window[read:]
        return Stretch(body=body, size=int(answer["ContentRange"].rpartition("/")[2]))

    return await store.call(read, doing=f"get {where}", deadline_s=deadline_s)
