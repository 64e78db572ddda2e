"""The store's time without writing anything: commands that only show must work with the right to look alone."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreUnfit

LEASE_TTL_S = 900.0


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
