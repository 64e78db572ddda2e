"""Leases: what each pool member holds and is about to read, for as long as it keeps writing it.

A member that pulls plans its route, writes a lease that pins the route's manifests, and only then reads them. Whatever
was collected in between makes that read fail, and the member plans again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import structlog

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, ObjectStoreError
from trimtab.weights.store.keys import lease_key, lease_prefix
from trimtab.weights.store.position import Position, Sha256
from trimtab.weights.store.store_clock import GRAIN_S, modified_at, store_now

_log = structlog.get_logger(__name__)
MAX_LEASE_BYTES = 1 << 20
RENEW_EVERY_S = 120.0
"""Well within any sensible time to live."""
_RENEW_DEADLINE_S = 30.0


class InvalidLease(ValueError):
    """A lease that cannot be read; what it protects is unknown, so nothing may be deleted until it expires."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """`pins` are the digests of manifests; unlike elsewhere, fields of a later release are ignored."""

    member: str
    held: Position | None = None
    pins: tuple[Sha256, ...] = ()


async def write_lease(store: ObjectStore, policy: str, lease: Lease, *, deadline_s: float) -> None:
    """Also renews it: the age of a lease is the age of its object."""
    await store.put(lease_key(policy, lease.member), msgspec.json.encode(lease), deadline_s=deadline_s)


@asynccontextmanager
async def kept_lease(store: ObjectStore, policy: str, lease: Lease) -> AsyncIterator[None]:
    """Writes the lease and renews it for as long as this lasts, however long that takes."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await write_lease(store, policy, lease, deadline_s=_RENEW_DEADLINE_S)
            except ObjectStoreError as error:
                _log.warning("lease_not_renewed", policy=policy, error=str(error))

    await write_lease(store, policy, lease, deadline_s=_RENEW_DEADLINE_S)
    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def drop_lease(store: ObjectStore, policy: str, member: str, *, deadline_s: float) -> None:
    await store.delete(lease_key(policy, member), deadline_s=deadline_s)


async def read_leases(store: ObjectStore, policy: str, *, ttl_s: float, deadline_s: float) -> tuple[Lease, ...]:
    """The leases that were written within the last `ttl_s` seconds. The deadline is for each request."""
    now = await store_now(store, policy, deadline_s=deadline_s)
    aged = await live_leases(store, policy, now=now, ttl_s=ttl_s, deadline_s=deadline_s)
    return tuple(one.lease for one in aged)


@dataclass(frozen=True)
class AgedLease:
    lease: Lease
    age_s: float


async def live_leases(
    store: ObjectStore, policy: str, *, now: float, ttl_s: float, deadline_s: float
) -> list[AgedLease]:
    """With their ages, by a time of the store's clock that the caller knows: this only reads."""
    found: list[AgedLease] = []
    async for info in store.scan(lease_prefix(policy), deadline_s=deadline_s):
        written_at = modified_at(info)
        if is_expired(written_at, now=now, ttl_s=ttl_s):
            continue
        try:
            stored = await store.get(info.key, max_bytes=MAX_LEASE_BYTES, deadline_s=deadline_s)
            lease = msgspec.json.decode(stored.body, type=Lease)
        except ObjectNotFound:
            continue  # dropped since the listing
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidLease(
                f"{store.where(info.key)} is malformed: {error}; remove it if no member uses it"
            ) from None
        found.append(AgedLease(lease, max(0.0, now - written_at)))
    return found


def is_expired(written_at: float, *, now: float, ttl_s: float) -> bool:
    return now - written_at > ttl_s + GRAIN_S
