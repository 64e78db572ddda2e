"""Reading a stretch of a large object into memory, for readers that have digests of the stretches they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreRefused, StoreUnavailable


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What was read: fewer bytes than asked for where the object ends before. `size` is of the whole object."""

    count: int
    size: int


async def read_range(store: ObjectStore, key: str, into: memoryview, *, start: int, deadline_s: float) -> Stretch:
    """As many bytes from `start` as there is room for. Raises ObjectNotFound. After an error a thread may still write
    there.
    """
    target, where = store.full_key(key), store.where(key)

    def read() -> Stretch:
        last = start + len(into) - 1
        try:
            answer = store.s3.get_object(Bucket=store.bucket, Key=target, Range=f"bytes={start}-{last}")
        except ClientError as fault:
            if fault.response.get("Error", {}).get("Code") == "InvalidRange":
                whole = store.s3.head_object(Bucket=store.bucket, Key=target)
                return Stretch(count=0, size=whole["ContentLength"])
            raise
        count = answer["ContentLength"]
        if "ContentRange" not in answer or count > len(into):
            raise StoreRefused(f"get {where}: the store does not answer with the range that it is asked for")
        window = into[:count]
        with answer["Body"] as stream:
            readable: Any = stream  # its stubs have readinto wrong
            while window:
                arrived = readable.readinto(window)
                if not arrived:
                    raise StoreUnavailable(f"{where} ended {len(window)} bytes before the end of a range")
                window = window[arrived:]
        return Stretch(count=count, size=int(answer["ContentRange"].rpartition("/")[2]))

    return await store.call(read, doing=f"get {where}", deadline_s=deadline_s)
