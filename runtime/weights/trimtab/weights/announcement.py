"""Tells the pools of a new version over the bus. Which is the newest is decided by the store; this is only the news."""

from __future__ import annotations

import asyncio

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusConflict, BusNotFound, BusTimeout
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.store.latest import SupersededTrainer

_CONFLICT_BACKOFF = FullJitter(base_s=0.05, cap_s=1.0)


async def announce(pointers: KeyValue, pointer: WeightPointer, *, deadline_s: float) -> None:
    """By compare-and-swap: a trainer that was superseded since its write to the store must not have the last word."""
    value = encode(pointer)
    attempt = 0
    try:
        async with asyncio.timeout(deadline_s):
            while not await _swapped(pointers, pointer, value, deadline_s=deadline_s):
                await asyncio.sleep(_CONFLICT_BACKOFF.delay_s(attempt))
                attempt += 1
    except TimeoutError:
        raise BusTimeout(f"could not announce version {pointer.version} within {deadline_s:.3g} s") from None


async def _swapped(pointers: KeyValue, pointer: WeightPointer, value: bytes, *, deadline_s: float) -> bool:
    try:
        present = await pointers.get(pointer.policy, deadline_s=deadline_s)
    except BusNotFound:
        present = None
    try:
        if present is None:
            await pointers.create(pointer.policy, value, deadline_s=deadline_s)
            return True
        told = decode(present.value, WeightPointer).epoch
        if told > pointer.epoch:
            raise SupersededTrainer(f"epoch {pointer.epoch} of {pointer.policy} was superseded by {told}")
        await pointers.update(pointer.policy, value, revision=present.revision, deadline_s=deadline_s)
    except BusConflict:
        return False
    return True
