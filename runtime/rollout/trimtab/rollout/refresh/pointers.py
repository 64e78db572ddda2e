"""Follows the pointers by which a policy's trainer announces its weights."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog

from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.weights import WeightPointer

_log = structlog.get_logger(__name__)


async def newer_pointers(pointers: KeyValue, policy: str) -> AsyncIterator[WeightPointer | None]:
    """Each pointer that is ahead of those before, for ever; None first where nothing has been announced yet."""
    newest: WeightPointer | None = None
    async with KvWatch(pointers, keys=policy) as watch:
        async for change in watch:
            if isinstance(change, Entry):
                pointer = _read(change.value, policy)
                # A trainer that was superseded may still get a word in; what it says is behind what we know.
                if pointer is not None and (newest is None or _place(pointer) > _place(newest)):
                    newest = pointer
                    yield pointer
            elif isinstance(change, SnapshotComplete) and newest is None:
                yield None


def _place(pointer: WeightPointer) -> tuple[int, int]:
    return pointer.epoch, pointer.version


def _read(value: bytes, policy: str) -> WeightPointer | None:
    try:
        return decode(value, WeightPointer)
    except WireError as error:
        _log.error("pointer_refused", policy=policy, reason=str(error))
        return None
