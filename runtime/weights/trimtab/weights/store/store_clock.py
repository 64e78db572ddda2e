"""The store's own clock. Ages of objects are differences of its times; by a local clock that is off, a lease could look
expired that is not.
"""

from __future__ import annotations

from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.errors import StoreUnfit
from trimtab.weights.store.keys import clock_key

GRAIN_S = 1.0
"""Most stores tell times in whole seconds, so an age can be off by this much."""


async def store_now(store: ObjectStore, policy: str, *, deadline_s: float) -> float:
    """Unix seconds, learnt from an object written just now."""
    key = clock_key(policy)
    await store.put(key, b"", deadline_s=deadline_s)
    return modified_at(await store.head(key, deadline_s=deadline_s))


def modified_at(info: ObjectInfo) -> float:
    if info.modified_at is None:
        missing = "times of objects (Last-Modified)"
        raise StoreUnfit(f"the store does not tell when {info.key} was written; use one that does", missing=[missing])
    return info.modified_at
