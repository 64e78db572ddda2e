"""Leases live by the store's clock, for as long as they are renewed."""

from __future__ import annotations

import time

import pytest

from tests.support.polling import eventually
from tests.support.weights.shelf import POLICY, D
from trimtab.fabric.objects.client import ObjectStore
from trimtab.weights.store.keys import lease_key
from trimtab.weights.store.leases import InvalidLease, Lease, drop_lease, read_leases, write_lease
from trimtab.weights.store.position import Position
from trimtab.weights.store.store_clock import store_now

FIRST = Lease(member="pool-0", held=Position(1, 4), pins=("ab" * 32,))
SECOND = Lease(member="pool-1")


async def leases(store: ObjectStore, *, ttl_s: float) -> set[Lease]:
    return set(await read_leases(store, POLICY, ttl_s=ttl_s, deadline_s=D))


async def test_a_lease_is_read_until_it_is_dropped(store: ObjectStore) -> None:
    for lease in (FIRST, SECOND, FIRST):
        await write_lease(store, POLICY, lease, deadline_s=D)
    assert await leases(store, ttl_s=60) == {FIRST, SECOND}
    await drop_lease(store, POLICY, "pool-0", deadline_s=D)
    await drop_lease(store, POLICY, "pool-0", deadline_s=D)
    assert await leases(store, ttl_s=60) == {SECOND}


async def test_a_lease_expires_and_lives_again_when_it_is_renewed(store: ObjectStore) -> None:
    await write_lease(store, POLICY, FIRST, deadline_s=D)

    async def expired() -> bool:
        return not await leases(store, ttl_s=2)

    async def renewed() -> bool:
        await write_lease(store, POLICY, FIRST, deadline_s=D)
        return await leases(store, ttl_s=2) == {FIRST}

    await eventually(expired, timeout_s=20)
    await eventually(renewed, timeout_s=20)


async def test_the_time_is_the_stores(store: ObjectStore) -> None:
    first = await store_now(store, POLICY, deadline_s=D)
    assert abs(first - time.time()) < 60, "the store of this test runs on this machine"

    async def later() -> bool:
        return await store_now(store, POLICY, deadline_s=D) > first

    await eventually(later, timeout_s=20)


async def test_a_lease_that_cannot_be_read_stops_whoever_relies_on_it(store: ObjectStore) -> None:
    await write_lease(store, POLICY, FIRST, deadline_s=D)
    for body in (b"{", b'{"member":"x","pins":["../x"]}', b"\xff"):
        await store.put(lease_key(POLICY, "pool-2"), body)
        with pytest.raises(InvalidLease, match="pool-2"):
            await leases(store, ttl_s=60)
    await store.put(lease_key(POLICY, "pool-2"), b'{"member":"pool-2","a later field":1}')
    assert await leases(store, ttl_s=60) == {FIRST, Lease(member="pool-2")}
