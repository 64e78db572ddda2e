"""Pointers in a store that does not sync: a loss of power may take what an object says and leave its name.

Nobody could move such a pointer any more, because nobody can read it. So what it is to say is written beside it first,
and whoever starts the store puts it right before anyone asks.
"""

from __future__ import annotations

import asyncio

import structlog

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, StoreTimeout, StoreUnavailable

POINTER = "latest.json"
_log = structlog.get_logger(__name__)
_NEXT = ".next"
_MAX_BYTES = 1 << 20
_READ_S = 10.0
"""A store on this machine answers within milliseconds, and searches for half a minute for what it has lost."""


async def announce_pointer(store: ObjectStore, key: str, body: bytes, *, deadline_s: float) -> None:
    """What the pointer will say, and all that was put before, outlives a loss of power from here on."""
    if store.syncs_later:
        await store.put(f"{key}{_NEXT}", body, deadline_s=deadline_s)
        await store.sync(deadline_s=deadline_s)


async def mend_pointers(store: ObjectStore, prefix: str, *, removes: bool) -> list[str]:
    """Those below the prefix that cannot be read say again what was announced. One of which nothing was announced stays
    as it is, or is removed where who writes it can begin a new one.
    """
    keys = [info.key async for info in store.scan(prefix) if info.key.rpartition("/")[2] == POINTER]
    bodies = await asyncio.gather(*(_content(store, key) for key in keys))
    lost = [key for key, body in zip(keys, bodies, strict=True) if body is None]
    for key in lost:
        announced = await _content(store, f"{key}{_NEXT}")
        if announced is not None:
            await store.put(key, announced)
        elif removes:
            await store.delete(key)
        _log.warning("unreadable_pointer", object=store.where(key), mended=announced is not None)
    return lost


async def _content(store: ObjectStore, key: str) -> bytes | None:
    """None for what cannot be read, and for what is not there."""
    try:
        return (await store.get(key, max_bytes=_MAX_BYTES, deadline_s=_READ_S)).body
    except (StoreUnavailable, StoreTimeout, ObjectNotFound) as error:
        _log.info("pointer_not_read", object=store.where(key), error=str(error))
        return None
