"""Who holds what, read without writing anything: commands that only show must work with the right to look alone."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import msgspec

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, StoreUnfit
from trimtab.weights.store.keys import lease_prefix
from trimtab.weights.store.leases import MAX_LEASE_BYTES, InvalidLease, Lease, is_expired
from trimtab.weights.store.store_clock import modified_at

LEASE_TTL_S = 900.0


@dataclass(frozen=True)
class AgedLease:
    lease: Lease
    age_s: float


async def store_time(store: ObjectStore, *, deadline_s: float) -> float:
    """The store's clock as its answers tell it, in whole seconds."""
    answer = await store.call(
        lambda: store.s3.list_objects_v2(Bucket=store.bucket, Prefix=store.full_key("weights"), MaxKeys=1),
        doing=f"list {store.where('weights')}",
        deadline_s=deadline_s,
    )
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreUnfit("the store's answers have no Date, so ages cannot be told", missing=["the Date header"])
    return parsedate_to_datetime(date).timestamp()


async def live_leases(
    store: ObjectStore, policy: str, *, now: float, ttl_s: float, deadline_s: float
) -> list[AgedLease]:
    """Raises InvalidLease for one that cannot be read, as the collection does."""
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
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidLease(
                f"{store.where(info.key)} is malformed: {error}; remove it if no member uses it"
            ) from None
        found.append(AgedLease(lease, max(0.0, now - written_at)))
    return found
