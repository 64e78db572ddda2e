"""What a collection would do now, found without writing anything."""

from __future__ import annotations

from trimtab.cli.weights.access import OpenWeights
from trimtab.cli.weights.store_time import store_time
from trimtab.weights.store.collection import Collected, CollectionRules, is_garbage, referenced_keys
from trimtab.weights.store.condemned import CondemnedList
from trimtab.weights.store.keys import parse_key, policy_prefix
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.leases import live_leases
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.retention import retained


async def preview(
    weights: OpenWeights, latest: Latest, rules: CollectionRules, manifests: ManifestReader, *, deadline_s: float
) -> Collected:
    """As `collect` would answer."""
    store, policy = weights.store, weights.policy
    now = await store_time(store, deadline_s=deadline_s)
    leases = [
        aged.lease for aged in await live_leases(store, policy, now=now, ttl_s=rules.lease_ttl_s, deadline_s=deadline_s)
    ]
    held = {lease.held for lease in leases if lease.held is not None}
    kept = retained(latest, held, keep_versions=rules.keep_versions)
    listed = [info async for info in store.scan(policy_prefix(policy), deadline_s=deadline_s)]
    names = {info.key: parse_key(policy, info.key) for info in listed}
    referenced = await referenced_keys(policy, kept, leases, names, manifests, deadline_s=deadline_s)
    garbage = [
        info
        for info in listed
        if info.key not in referenced and is_garbage(info, names[info.key], now=now, epoch=latest.epoch, rules=rules)
    ]
    since = await CondemnedList(store, policy).read(deadline_s=deadline_s)
    due = [info for info in garbage if info.key in since and since[info.key] <= now - rules.grace_s]
    gone = {info.key for info in due}
    return Collected(
        dropped=tuple(entry for entry in latest.catalogue if entry not in set(kept)),
        condemned=tuple(info.key for info in garbage if info.key not in gone),
        deleted=tuple(gone),
        freed_bytes=sum(info.size for info in due),
        unknown=tuple(key for key, name in names.items() if name is None),
    )
